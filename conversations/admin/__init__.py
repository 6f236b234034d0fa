"""Conversations and people for administrators, and whose the leases are. No page of a list shows anybody's words."""

from django.contrib import admin

from chatbackend.accounts.models import User
from conversations.admin.conversations import ConversationPage
from conversations.admin.holders import ParkOfPersonPage, PastLeaseOfPersonPage, SlotOfPersonPage
from conversations.admin.people import PersonWithConversationsPage
from conversations.admin.presets import PresetPage
from conversations.models import Conversation, Preset
from slots.models import Park, PastLease, Slot

# In place of the pages that know no people.
admin.site.unregister([Slot, PastLease, Park, User])
admin.site.register(Slot, SlotOfPersonPage)
admin.site.register(PastLease, PastLeaseOfPersonPage)
admin.site.register(Park, ParkOfPersonPage)
admin.site.register(User, PersonWithConversationsPage)
admin.site.register(Conversation, ConversationPage)
admin.site.register(Preset, PresetPage)
