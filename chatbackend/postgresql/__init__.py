"""Django's database backend for Postgres, with a pool that is whole again as soon as Postgres is."""

from django.db import InterfaceError, InternalError, OperationalError

# What Postgres being away looks like; any other DatabaseError is a fault of ours. InternalError: it ended our
# transaction while we were paused, or is a standby that does not write yet.
AWAY = (OperationalError, InterfaceError, InternalError)
