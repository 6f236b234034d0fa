"""Who sees what of the admin: nobody, a person, staff without rights, staff with one, an administrator."""

import re
from html.parser import HTMLParser

import pytest
from django.contrib.admin import site
from django.contrib.admin.models import LogEntry
from django.db.models import Model
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from chatbackend.accounts import invites
from chatbackend.accounts.models import Invite, User
from chatbackend.accounts.rights import RIGHTS
from chatbackend.apps import load_admin
from conversations.models import Conversation, Preset
from slots.models import Park, PastLease, Server, Slot
from tests import factories
from tests.administrators import KEY, WORDS, administrator, furnish, page, signed_in, staff

pytestmark = pytest.mark.django_db(transaction=True)

LISTS: tuple[type[Model], ...] = (Server, Slot, Park, PastLease, User, Invite, Conversation, Preset, LogEntry)
VIEWS = {
    "slots_server_look": Server,
    "slots_server_drain": Server,
    "slots_server_serve": Server,
    "slots_server_retire": Server,
    "accounts_user_disable": User,
    "accounts_user_enable": User,
    "accounts_user_reset-link": User,
    "conversations_conversation_text": Conversation,
    "conversations_conversation_stop": Conversation,
}


def addresses() -> list[str]:
    """Every page of the admin, those of our own included."""
    found = [reverse("admin:index"), *(reverse(f"admin:{name}") for name in ("slots_slot_evict", "slots_slot_stop"))]
    found += [reverse("admin:accounts_invite_new")]
    for model in LISTS:
        found += [page(model, view) for view in ("changelist", "add")]
        for pk in model._default_manager.values_list("pk", flat=True)[:1]:
            found += [page(model, view, pk) for view in ("change", "history", "delete")]
    for name, model in VIEWS.items():
        found.append(reverse(f"admin:{name}", args=[model._default_manager.values_list("pk", flat=True)[0]]))
    return found


def test_only_what_is_ours_is_in_the_admin() -> None:
    load_admin()
    assert set(site._registry) == set(LISTS)


def test_nobody_is_sent_to_the_one_sign_in_page_and_back() -> None:
    furnish()
    for address in addresses():
        answer = Client().get(address)
        assert answer.status_code == 302
        assert answer.headers["Location"] == f"/sign-in/?next={address}"
    assert Client().get("/admin/login/").headers["Location"] == "/sign-in/?next=/admin/"


def test_a_person_is_told_that_the_admin_is_not_theirs() -> None:
    furnish()
    client = signed_in("alice")
    for address in [*addresses(), "/admin/login/"]:
        for answer in (client.get(address), client.post(address)):
            assert answer.status_code == 403, address
            assert "for those who run this site" in answer.content.decode()


def test_staff_without_rights_see_the_front_page_and_nothing_on_it() -> None:
    furnish()
    client = staff()
    front = client.get("/admin/")
    assert front.status_code == 200
    assert "You have no rights here yet" in front.content.decode()
    assert "llama.test" not in front.content.decode()
    for address in addresses()[1:]:
        for answer in (client.get(address), client.post(address)):
            assert answer.status_code == 403, address


def test_an_administrator_sees_every_page_and_nobody_s_words_or_keys_on_any() -> None:
    furnish()
    client = administrator()
    invites.create(User.objects.get(username="admin"))
    seen = 0
    for address in addresses():
        answer = client.get(address, follow=True)
        assert answer.status_code in (200, 403, 405), address
        seen += answer.status_code == 200
        for words in (*WORDS, KEY):
            assert words not in answer.content.decode(), address
    assert seen > 30


def test_each_right_opens_its_own_pages_and_no_others() -> None:
    furnish()
    kinds = {str(model._meta.model_name): model for model in LISTS}
    for right in RIGHTS:
        client = staff(right)
        app, _, codename = right.partition(".")
        verb, _, name = codename.partition("_")
        opened = {address for address in addresses()[1:] if client.get(address).status_code == 200}
        if verb == "view" or right in ("slots.change_server", "accounts.change_user"):
            assert page(kinds[name], "changelist") in opened, right
        assert all(f"/{app}/" in address for address in opened), right
        assert verb == "delete" or not any("/delete/" in address for address in opened), right
        assert verb == "add" or not any(address.endswith("/add/") for address in opened), right


def test_no_list_can_be_asked_for_what_it_does_not_show() -> None:
    furnish()
    client = administrator()
    for model, asked in (
        (Server, {"api_key__startswith": "sk"}),
        (Slot, {"server__api_key__startswith": "sk"}),
        (PastLease, {"slot__server__api_key__startswith": "sk"}),
        (Park, {"outline__isnull": "0"}),
        (Conversation, {"title__startswith": "A"}),
        (Conversation, {"system_prompt__contains": "A"}),
        (Conversation, {"messages__text__contains": "steam"}),
        (Conversation, {"owner__password__startswith": "a"}),
        (User, {"password__startswith": "a"}),
        (User, {"conversations__title__startswith": "A"}),
        (Invite, {"digest": "a"}),
    ):
        assert client.get(page(model, "changelist"), asked).status_code == 400, asked


def test_search_finds_by_name_and_id_and_never_by_words() -> None:
    where = furnish()
    client = administrator()

    def found(words: str) -> bool:
        return str(where.pk) in client.get(page(Conversation, "changelist"), {"q": words}).content.decode()

    assert found("alice")
    assert found(str(where.pk))
    assert not found("bob")
    assert not any(found(words) for words in WORDS)


def test_lists_cost_the_same_few_queries_however_long_they_are(
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    furnish()
    server = factories.server(30, url="http://second.test")
    for number in range(30):
        where = factories.conversation(factories.person(f"person{number}"))
        factories.idle(server, where.pk)
        invites.create(where.owner)
    client = administrator()
    for model in LISTS:
        with django_assert_max_num_queries(9):
            assert client.get(page(model, "changelist")).status_code == 200
    with django_assert_max_num_queries(12):
        client.get("/admin/")


class _Inline(HTMLParser):
    """What a content security policy of 'self' refuses, and what a screen reader misses."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []
        self.labelled: set[str] = set()
        self.fields: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        about = dict(attrs)
        if tag == "style" or "style" in about or any(name.startswith("on") for name in about):
            self.refused.append(f"{tag} {about}")
        if tag == "script" and "src" not in about:
            self.refused.append("script without src")
        for name in ("src", "href", "action"):
            if (about.get(name) or "").startswith(("http:", "https:", "//", "javascript:")):
                self.refused.append(f"{tag} {about[name]}")
        if tag == "label" and about.get("for"):
            self.labelled.add(str(about["for"]))
        if tag in ("input", "select", "textarea") and about.get("type") not in ("hidden", "submit"):
            self.fields.append((tag, about))


def test_no_page_has_anything_inline_or_from_elsewhere_and_every_field_has_a_label() -> None:
    furnish()
    client = administrator()
    for address in addresses():
        answer = client.get(address)
        if answer.status_code != 200:
            continue
        parser = _Inline()
        parser.feed(answer.content.decode())
        assert not parser.refused, address
        for tag, about in parser.fields:
            named = about.get("id") in parser.labelled or "aria-label" in about or "aria-labelledby" in about
            assert named or _inside_label(answer.content.decode(), about), f"{address}: {tag} {about}"


def _inside_label(html: str, about: dict[str, str | None]) -> bool:
    return bool(re.search(rf'<label[^>]*>(?:(?!</label>).)*name="{about.get("name")}"', html, re.DOTALL))


def test_the_header_leads_to_the_chat_and_signs_out_by_post() -> None:
    html = administrator().get("/admin/").content.decode()
    assert 'href="/">To the chat' in html
    assert 'method="post" action="/sign-out/"' in html
    assert "chatbackend · Admin" in html
