from django.urls import path

from conversations.api import presets, socketless, transfer, views

urlpatterns = [
    path("conversations/", views.Conversations.as_view()),
    path("conversations/<uuid:id_>/", views.OneConversation.as_view()),
    path("conversations/<uuid:id_>/restore/", views.Restore.as_view()),
    path("conversations/<uuid:id_>/export/", transfer.ExportOne.as_view()),
    path("conversations/<uuid:id_>/messages/", views.Messages.as_view()),
    path("messages/<uuid:id_>/edit/", views.Edit.as_view()),
    path("messages/<uuid:id_>/show/", views.ShowVersion.as_view()),
    path("messages/<uuid:id_>/regenerate/", views.Regenerate.as_view()),
    path("generations/<uuid:id_>/", views.OneGeneration.as_view()),
    path("generations/<uuid:id_>/events/", views.GenerationEvents.as_view()),
    path("generations/<uuid:id_>/cancel/", views.CancelGeneration.as_view()),
    path("generations/<uuid:id_>/continue/", views.ContinueGeneration.as_view()),
    path("presets/", presets.Presets.as_view()),
    path("presets/<uuid:id_>/", presets.OnePreset.as_view()),
    path("events/", socketless.Events.as_view()),
    path("export/", transfer.ExportAll.as_view()),
    path("import/", transfer.Import.as_view()),
    path("search/", views.Search.as_view()),
    path("models/", views.Models.as_view()),
]
