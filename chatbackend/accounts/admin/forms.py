"""The forms by which administrators add people and change what they may."""

from typing import Any

from allauth.account.adapter import get_adapter
from django import forms
from django.contrib.auth import password_validation

from chatbackend.accounts import rights
from chatbackend.accounts.models import User

ROLES = {
    "person": "Person: chats, and sees nothing of the admin",
    "staff": "Staff: may do what is ticked below",
    "administrator": "Administrator: may do everything",
}
WIDE = {"class": "vTextField", "autocomplete": "off"}


def role_of(person: User) -> str:
    """One of ROLES."""
    if person.is_superuser:
        return "administrator"
    return "staff" if person.is_staff else "person"


class PersonForm(forms.ModelForm):  # type: ignore[type-arg]
    """Name and e-mail address, by the rules of signing up."""

    class Meta:
        model = User
        fields: tuple[str, ...] = ("username", "email")
        widgets = {"username": forms.TextInput(attrs=WIDE), "email": forms.EmailInput(attrs=WIDE)}
        help_texts = {"username": "Letters, digits and @ . + - _", "email": "Optional. Nothing is sent to it."}

    def clean_username(self) -> str:
        name = str(self.cleaned_data["username"])
        if name == self.instance.username:
            return name
        return str(get_adapter().clean_username(name))


class AddForm(PersonForm):
    password = forms.CharField(
        required=False,
        strip=False,
        help_text="Leave it empty to get a link by which the person sets one.",
        widget=forms.PasswordInput(attrs={"class": "vTextField", "autocomplete": "new-password"}),
    )

    def clean(self) -> dict[str, Any]:
        said = super().clean() or {}
        if password := said.get("password"):
            named = User(username=said.get("username", ""), email=said.get("email") or "")
            try:
                password_validation.validate_password(password, named)
            except forms.ValidationError as error:
                self.add_error("password", error)
        return said


class RightsForm(PersonForm):
    """With what the person may do; for administrators alone."""

    role = forms.ChoiceField(choices=list(ROLES.items()), widget=forms.RadioSelect)
    rights = forms.MultipleChoiceField(
        choices=list(rights.RIGHTS.items()), required=False, widget=forms.CheckboxSelectMultiple
    )

    acting: User  # who uses the form

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial.update(role=role_of(self.instance), rights=rights.of(self.instance))

    def clean_role(self) -> str:
        role = str(self.cleaned_data["role"])
        if self.instance.is_superuser and role != "administrator":
            if self.instance.pk == self.acting.pk:
                raise forms.ValidationError("Nobody gives up their own rights: ask another administrator.")
            try:
                rights.keep_an_administrator(self.instance)
            except rights.Refused as refused:
                raise forms.ValidationError(str(refused)) from refused
        return role
