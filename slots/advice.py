"""The command line that would let a server be used in full: made from what its `/props` say.

Only what keeps conversations apart is named; everything else of a person's command stays as it is.
"""

import shlex

from slots.client import Props

BATCH = 512  # tokens: bounds how long one prefill holds up its neighbours' streams, and how late a stop is noticed
SAVE_PATH = "~/llama-slots"
USEFUL_CONTEXT = 2048  # model tokens that a conversation needs at least, where one context is to be divided
KEEP = "Restart it with this, and keep your other flags"
FOLDER = " (the folder for slots must exist; conversations will lie in it)"


def command(props: Props, *, shared_pool: bool = False, saves: bool = False, whole_window: bool = False) -> str:
    """`llama-server` with the flags of grade full.

    `shared_pool`: its slots share one context now, so the same memory is divided among them. `saves`: it has its
    --slot-save-path already. `whole_window`: its model needs --swa-full to go on from a restored slot.
    """
    slots = places(props, shared_pool=shared_pool)
    context = props.n_ctx if shared_pool else props.n_ctx * slots
    words = [
        *("llama-server", "-m", shlex.quote(props.model_path or "MODEL.gguf")),
        *("-np", str(slots), "--no-kv-unified", "-c", str(padded(context, slots))),
        *("--cache-ram", "0", "-sps", "0", "--cache-reuse", "0", "-b", str(BATCH), "-ub", str(BATCH)),
        *(() if saves else ("--slot-save-path", SAVE_PATH)),
        *(("--swa-full",) if whole_window else ()),
    ]
    return " ".join(words)


def places(props: Props, *, shared_pool: bool) -> int:
    """How many slots the command line names: as many as there are, unless the memory they share is too small."""
    slots = max(props.total_slots, 1)
    return max(1, min(slots, props.n_ctx // USEFUL_CONTEXT)) if shared_pool else slots


def divided(props: Props) -> str:
    """What becomes of a context that all slots share, when each gets its own of the same memory."""
    slots = places(props, shared_pool=True)
    each = padded(props.n_ctx, slots) // slots
    if slots == 1:
        return f"In the memory it has now there is room for one slot of {each:,} tokens; a larger -c and -np take more."
    return f"In the memory it has now each of {slots} slots will have {each:,} tokens; a larger -c takes more."


def introduction(cure: str) -> str:
    """The sentence before a command line."""
    return f"{KEEP}{FOLDER if SAVE_PATH in cure else ''}:"


def is_command(cure: str) -> bool:
    """Whether a cure is to be typed into a shell, and not a sentence."""
    return cure.startswith("llama-server ")


def padded(context: int, slots: int) -> int:
    """The total `-c` that gives each slot its share, which llama-server rounds up to 256 tokens."""
    return -(-context // (slots * 256)) * slots * 256
