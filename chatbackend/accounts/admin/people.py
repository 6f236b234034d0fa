"""People: adding, disabling, helping back in, and what each of them may do."""

import logging
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path, reverse

from chatbackend.accounts import rights, sessions
from chatbackend.accounts.admin import links
from chatbackend.accounts.admin.forms import AddForm, PersonForm, RightsForm, role_of
from chatbackend.accounts.admin.invitations import invite_button
from chatbackend.accounts.models import User
from slots.admin.confirming import Confirmation, confirm
from slots.admin.reading import Page, moment, pill

logger = logging.getLogger(__name__)


class ByRole(admin.SimpleListFilter):
    title = parameter_name = "role"
    flags = {"administrator": (True, True), "staff": (True, False), "person": (False, False)}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("administrator", "Administrators"), ("staff", "Staff"), ("person", "Others")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[User]) -> QuerySet[User]:
        if (role := self.value()) not in self.flags:
            return queryset
        staff, administrator = self.flags[role]
        return queryset.filter(is_staff=staff, is_superuser=administrator)


class PersonPage(Page[User]):
    list_display = ["username", "role", "state", "joined", "last_sign_in"]
    list_filter = ("is_active", ByRole)
    search_fields = ("username", "email")
    search_help_text = "A name or an e-mail address."
    ordering = ("username",)
    facts: ClassVar[tuple[str, ...]] = ("state", "joined", "last_sign_in")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "add_user")

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return self.may(request, "change_user") and _reaches(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return self.may(request, "delete_user") and _reaches(request, obj)

    def get_form(self, request: HttpRequest, obj: User | None = None, change: bool = False, **kwargs: Any) -> Any:
        form = AddForm if obj is None else RightsForm if _decides_rights(request) else PersonForm
        made = super().get_form(request, obj, change, form=form, **kwargs)
        made.acting = request.user  # type: ignore[attr-defined]  # a class of this request alone
        return made

    def get_fieldsets(self, request: HttpRequest, obj: User | None = None) -> Any:
        if obj is None:
            return ((None, {"fields": ("username", "email", "password")}),)
        if _decides_rights(request):
            rights_of_theirs = ("What this person may do", {"fields": ("role", "rights")})
            return ((None, {"fields": ("username", "email", *self.facts)}), rights_of_theirs)
        return ((None, {"fields": ("username", "email", "role", *self.facts)}),)

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> Any:
        if obj is None:
            return ()
        return self.facts if _decides_rights(request) else ("role", *self.facts)

    # What is shown

    @admin.display(description="role", ordering="-is_superuser")
    def role(self, person: User) -> str:
        return role_of(person).capitalize()

    @admin.display(description="state", ordering="is_active")
    def state(self, person: User) -> str:
        return pill("good", "Active") if person.is_active else pill("bad", "Disabled")

    @admin.display(description="joined", ordering="date_joined")
    def joined(self, person: User) -> str:
        return moment(person.date_joined)

    @admin.display(description="last sign-in", ordering="last_login")
    def last_sign_in(self, person: User) -> str:
        return moment(person.last_login)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, {**(extra_context or {}), "orders": invite_button(request)})

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        person: User | None = kwargs.get("obj")
        if person and self.has_change_permission(request, person):
            context["orders"] = _orders(person, himself=person.pk == request.user.pk)
        return super().render_change_form(request, context, *args, **kwargs)

    # Saving: what the form changed and nothing else

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        if not change:
            obj.set_password(form.cleaned_data["password"] or None)
            obj.save()
            return
        changed = [name for name in ("username", "email") if name in form.changed_data]
        if role := form.cleaned_data.get("role"):
            obj.is_superuser, obj.is_staff = role == "administrator", role != "person"
            changed += ["is_superuser", "is_staff"]
        obj.save(update_fields=changed)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        if "rights" in form.cleaned_data:
            given = form.cleaned_data["rights"] if form.cleaned_data["role"] == "staff" else ()
            rights.give(form.instance, given)

    def response_add(self, request: HttpRequest, obj: User, post_url_continue: str | None = None) -> HttpResponse:
        if obj.has_usable_password():
            return super().response_add(request, obj, post_url_continue)
        return links.for_password(request, self.admin_site, obj)

    # Disabling, enabling, a way back in

    def get_urls(self) -> list[URLPattern]:
        views = {"disable": self.disable_view, "enable": self.enable_view, "reset-link": self.reset_link_view}
        ours = [
            path(f"<int:pk>/{name}/", self.admin_site.admin_view(view), name=f"accounts_user_{name}")
            for name, view in views.items()
        ]
        return [*ours, *super().get_urls()]

    def disable_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        person = self._person(request, pk)
        if request.method != "POST":
            return confirm(request, self.admin_site, _disabling(person))
        try:
            self._disable(request, person)
        except rights.Refused as refused:
            messages.error(request, str(refused))
        else:
            self.silence(person)
            messages.success(request, f"{person.username} is signed out everywhere and cannot sign in.")
        return HttpResponseRedirect(_page(pk))

    def _disable(self, request: HttpRequest, person: User) -> None:
        with transaction.atomic():
            if person.pk == request.user.pk:
                raise rights.Refused("Nobody disables themselves: ask another administrator.")
            rights.keep_an_administrator(person)
            person.is_active = False
            person.save(update_fields=["is_active"])
            sessions.end_all(person)
            self.log_change(request, person, "Disabled.")
        logger.info("disabled person=%s by=%s", person.pk, request.user.pk)

    def silence(self, person: User) -> None:
        """Stop what still happens on behalf of somebody who was just disabled."""

    def enable_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        person = self._person(request, pk)
        if request.method == "POST" and not person.is_active:
            person.is_active = True
            person.save(update_fields=["is_active"])
            self.log_change(request, person, "Enabled.")
            messages.success(request, f"{person.username} can sign in again.")
        return HttpResponseRedirect(_page(pk))

    def reset_link_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        person = self._person(request, pk)
        if request.method != "POST":
            return HttpResponseRedirect(_page(pk))
        if not person.is_active:
            messages.error(request, f"{person.username} is disabled: enable the account first.")
            return HttpResponseRedirect(_page(pk))
        self.log_change(request, person, "Made a password-reset link.")
        return links.for_password(request, self.admin_site, person)

    def _person(self, request: HttpRequest, pk: int) -> User:
        person = get_object_or_404(User, pk=pk)
        if not self.has_change_permission(request, person):
            raise PermissionDenied
        return person

    # Deleting

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """What goes with them, counted, or why they stay."""
        people: list[User] = list(objs)
        kept = [why for person in people if (why := self._why_kept(request, person))]
        return [person.username for person in people], self.losses(people), set(), kept

    def _why_kept(self, request: HttpRequest, person: User) -> str | None:
        if not _reaches(request, person):
            return f"{person.username}: only an administrator deletes staff."
        if person.pk == request.user.pk:
            return f"{person.username}: nobody deletes themselves."
        if count := LogEntry.objects.filter(user=person).count():
            return f"{person.username}: what they did as administrator ({count} entries) stays on record. Disable them."
        return None

    def losses(self, people: list[User]) -> dict[str, int]:
        """What is lost with these people, counted by its name."""
        return {}

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        with transaction.atomic():
            for person in queryset:
                self.delete_model(request, person)


def _reaches(request: HttpRequest, person: User | None) -> bool:
    """Staff must not become administrators by resetting the password of one."""
    return person is None or _decides_rights(request) or not person.is_staff


def _decides_rights(request: HttpRequest) -> bool:
    return bool(request.user.is_superuser)


def _page(pk: int) -> str:
    return reverse("admin:accounts_user_change", args=[pk])


def _orders(person: User, himself: bool) -> list[dict[str, str]]:
    def button(name: str, label: str, **more: str) -> dict[str, str]:
        return {"address": reverse(f"admin:accounts_user_{name}", args=[person.pk]), "label": label, **more}

    if not person.is_active:
        return [button("enable", "Enable")]
    buttons = [button("reset-link", "Password-reset link")]
    return buttons if himself else [*buttons, button("disable", "Disable…", asks="yes")]


def _disabling(person: User) -> Confirmation:
    return Confirmation(
        title=f"Disable {person.username}?",
        button="Disable",
        back=_page(person.pk),
        sentences=(
            "They are signed out everywhere and cannot sign in. Answers that are being written for them are stopped.",
            "Nothing is deleted: their conversations are all there when you enable them again.",
        ),
    )
