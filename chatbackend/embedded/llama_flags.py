"""Which of llama-server's flags are ours: what keeps one conversation's words out of another's answer.

The spellings are those of llama.cpp's common/arg.cpp, where `_` in a long flag means `-`.
"""

import re
from collections.abc import Mapping, Sequence

from chatbackend.embedded.parts import CannotStart

# Why a flag in LLAMA_ARGS is refused, and every spelling of it.
OURS: dict[str, str] = {
    "-np --parallel": "the number of slots is LLAMA_SLOTS",
    "-c --ctx-size --kv-unified-per-slot": "the context of a slot is LLAMA_SLOT_CONTEXT",
    "-kvu --kv-unified -no-kvu --no-kv-unified": "every slot keeps its own KV cache",
    "-cram --cache-ram --cache-idle-slots --no-cache-idle-slots": "a RAM cache mixes conversations up",
    "-sps --slot-prompt-similarity": "no request is put on a slot by its text",
    "--cache-reuse": "reused chunks carry the text that stood before them",
    "--cache-prompt --no-cache-prompt": "each request says what it reuses",
    "--context-shift --no-context-shift": "a shifted context is no longer the conversation",
    "--slot-save-path --slots --no-slots": "conversations are parked and watched there",
    "--sleep-idle-seconds": "a sleeping server forgets every conversation",
    "--host --port --reuse-port --api-prefix --ssl-key-file --ssl-cert-file": "the address is chosen by `up`",
    "--api-key --api-key-file": "the key is made by `up`",
    "--models-dir --models-preset --models-max --models-autoload --no-models-autoload": "a router has no slots",
    "--tools --tools-runtime -ag --agent -no-ag --no-agent --mcp-servers-config --mcp-servers-json "
    "--ui-mcp-proxy --webui-mcp-proxy --no-ui-mcp-proxy --no-webui-mcp-proxy": "it would let chats run commands",
    "--log-prompts-dir": "it writes conversations to disk",
    "-m --model -mu --model-url -dr --docker-repo -hf -hfr --hf-repo -hff --hf-file": "the model is LLAMA_MODEL",
}
REASONS = {spelling: reason for spellings, reason in OURS.items() for spelling in spellings.split()}
# --gpt-oss-20b-default and its like choose a model, a port and a context at once; --spec-default does not.
PRESET = re.compile(r"--(?:embd|fim|gpt-oss|vision)-[a-z0-9-]+-default")
# Variables that do what a flag of ours does, or print prompts. A flag wins over its variable, but not all are given.
OUR_VARIABLES = re.compile(
    r"LLAMA_ARG_(?:NO_)?(?:N_PARALLEL|CTX_SIZE|KV_UNIFIED|KV_UNIFIED_PER_SLOT|CACHE_RAM|CACHE_IDLE_SLOTS|CACHE_REUSE"
    r"|CACHE_PROMPT|SLOT_PROMPT_SIMILARITY|CONTEXT_SHIFT|SLOT_SAVE_PATH|ENDPOINT_SLOTS|SLEEP_IDLE_SECONDS|HOST|PORT"
    r"|REUSE_PORT|API_PREFIX|API_KEY|API_KEY_FILE|SSL_KEY_FILE|SSL_CERT_FILE|MODELS_[A-Z]+|TOOLS|TOOLS_RUNTIME|AGENT"
    r"|MCP_[A-Z_]+|(?:WEB)?UI_MCP_PROXY|MODEL|MODEL_URL|DOCKER_REPO|HF_REPO|HF_FILE)"
    r"|LLAMA_API_KEY|LLAMA_SERVER_[A-Z_]+"
)


def refuse_ours(words: Sequence[str]) -> None:
    """Raises CannotStart naming the first word of LLAMA_ARGS that is not a person's to set."""
    for word in words:
        name = spelling(word)
        reason = REASONS.get(name) or ("the model is LLAMA_MODEL" if PRESET.fullmatch(name) else None)
        if reason is not None:
            raise CannotStart(f"LLAMA_ARGS must not contain {word.partition('=')[0]}: {reason}")


def given(words: Sequence[str], *spellings: str) -> bool:
    """Whether one of these flags is among the words."""
    return any(spelling(word) in spellings for word in words)


def spelling(word: str) -> str:
    """A word as llama-server compares it with its flags, without a `=value`."""
    name = word.partition("=")[0]
    return name.replace("_", "-") if name.startswith("--") else name


def our_variables(environ: Mapping[str, str]) -> list[str]:
    """The environment's variables that would undo a flag of ours."""
    return sorted(name for name in environ if OUR_VARIABLES.fullmatch(name))
