"""The pages of accounts; clients use `/_allauth/`."""

from django.urls import path

from chatbackend.accounts import pages

urlpatterns = [
    path("sign-in/", pages.sign_in, name="sign_in"),
]
