from django.urls import path

from conversations.pages import views

urlpatterns = [
    path("", views.chat, name="chat"),
    path("c/<uuid:id_>/", views.chat, name="conversation"),
]
