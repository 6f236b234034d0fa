"""The pages of accounts; clients use `/_allauth/`."""

from django.urls import path

from chatbackend.accounts.pages import account, joining, signing_in

urlpatterns = [
    path("sign-in/", signing_in.sign_in, name="sign_in"),
    path("sign-out/", signing_in.sign_out, name="sign_out"),
    path("enter/<str:token>/", signing_in.enter, name="enter"),
    path("sign-up/", joining.sign_up, name="sign_up"),
    path("join/<str:code>/", joining.join, name="join"),
    path("invite/", joining.invite, name="invite"),
    path("account/", account.Account.as_view(), name="account"),
    path("account/sign-out-elsewhere/", account.sign_out_elsewhere, name="sign_out_elsewhere"),
    path("reset/<uidb64>/<token>/", account.Reset.as_view(), name="reset"),
]
