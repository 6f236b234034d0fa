"""What a person can set does on the real llama-server what it does on the scripted one."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from conversations import asking
from conversations.parameters import PARAMETERS, THINKING
from tests.fake_llama import FakeLlama
from tests.llama import STRICT_FLAGS, real_llama_server
from tests.llama_both import BOTH, Running
from tests.llama_client import Server, assistant, user
from tests.scripted import tokens

MESSAGES = [
    user("What is 2 + 2?"), assistant("Four.") | {"reasoning_content": "\n Two and two. \n"}, user("Sure?"),
]  # fmt: skip
THOUGHT = "<think>\n Two and two. \n</think>"


@pytest.fixture(scope="module", params=[True, False], ids=["keeps", "drops"])
def keeps(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module", params=BOTH)
def thinker(keeps: bool, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One slot; its template has a thinking switch, and keeps earlier thoughts or drops them."""
    file = Path(tmp_path_factory.mktemp("template")) / "template.jinja"
    file.write_text(tokens.Template(keeps, switch=True).text)
    with ExitStack() as stack:
        running: Running
        if request.param == "real":
            flags = (*STRICT_FLAGS, "--chat-template-file", str(file))
            running = stack.enter_context(real_llama_server(slots=1, slot_context=256, api_key=None, flags=flags))
        else:
            running = stack.enter_context(FakeLlama(slots=1, n_ctx=256, keeps_thoughts=keeps, thinking_switch=True))
        yield Server(running.url)


def rendered(server: Server, **more: Any) -> str:
    return str(server.post("/apply-template", {"messages": MESSAGES, **more}).json()["prompt"])


def test_a_template_has_earlier_thoughts_as_they_were_sent_or_not_at_all(thinker: Server, keeps: bool) -> None:
    said = f"<|im_start|>assistant\n{THOUGHT if keeps else ''}Four.<|im_end|>\n<|im_start|>user\nSure?"
    assert said in rendered(thinker)
    assert "enable_thinking" in thinker.get("/props").json()["chat_template"]


def test_a_template_is_told_whether_to_think(thinker: Server) -> None:
    opened = "<|im_start|>assistant\n"
    assert rendered(thinker).endswith(opened)
    for params, ending in (({"thinking": "on"}, opened), ({"thinking": "off"}, f"{opened}<think></think>")):
        decided = asking.decided(params, ["enable_thinking"])
        assert rendered(thinker, chat_template_kwargs=decided).endswith(ending)


def test_all_parameters_at_once_are_taken_and_an_answer_ends_before_a_stop_string(thinker: Server) -> None:
    params = {
        "temperature": 0.0, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repeat_penalty": 1.1, "max_tokens": 24, "seed": 7,
    }  # fmt: skip
    assert set(params) == {parameter.name for parameter in PARAMETERS} - {"stop", THINKING.name}

    def ask(**more: Any) -> Any:
        body = asking.body([user("Count to five.")], params | more, 0, 0, reuse=False, decided={})
        return thinker.chat(body.pop("messages"), **body)

    whole = ask()
    word = whole.text[4:12]
    cut = ask(stop=["never said", word])
    assert (cut.text, cut.finish) == (whole.text[: whole.text.index(word)], "stop")
