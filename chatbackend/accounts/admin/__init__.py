"""People, invitations and the record of what administrators did. What people have here adds `conversations.admin`."""

from django.contrib import admin
from django.contrib.admin.models import LogEntry

from chatbackend.accounts.admin.invitations import InvitationPage
from chatbackend.accounts.admin.people import PersonPage
from chatbackend.accounts.admin.record import RecordPage
from chatbackend.accounts.models import Invite, User

__all__ = ["PersonPage"]

admin.site.register(User, PersonPage)
admin.site.register(Invite, InvitationPage)
admin.site.register(LogEntry, RecordPage)
