"""Signing in, signing up and what belongs to it, for browsers."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render


def sign_in(request: HttpRequest) -> HttpResponse:
    return render(request, "registration/sign_in.html")
