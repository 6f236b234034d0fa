"""Django's database backend for Postgres, with a pool that is whole again as soon as Postgres is."""
