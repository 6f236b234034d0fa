"""Servers, slots and the history of leases, for administrators. Who holds a lease is shown by `conversations.admin`."""

from django.contrib import admin

from slots.admin.leases import PastLeasePage, SlotPage
from slots.admin.servers import ServerPage
from slots.models import PastLease, Server, Slot

admin.site.register(Server, ServerPage)
admin.site.register(Slot, SlotPage)
admin.site.register(PastLease, PastLeasePage)
