"""Servers, slots, parked files and past leases for administrators. Whose they are is shown by `conversations.admin`."""

from django.contrib import admin

from slots.admin.files import ParkPage
from slots.admin.leases import PastLeasePage, SlotPage
from slots.admin.servers import ServerPage
from slots.models import Park, PastLease, Server, Slot

admin.site.register(Server, ServerPage)
admin.site.register(Slot, SlotPage)
admin.site.register(PastLease, PastLeasePage)
admin.site.register(Park, ParkPage)
