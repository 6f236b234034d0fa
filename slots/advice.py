"""The command line that would let a server be used in full: made from what its `/props` say.

Only what keeps conversations apart is named; everything else of a person's command stays as it is.
"""

import shlex

from slots.client import Props

BATCH = 512  # tokens: bounds how long one prefill holds up its neighbours' streams, and how late a stop is noticed
KEEP = "Restart it with this, and keep your other flags:"
SAVE_PATH = "~/llama-slots"


def command(props: Props, *, shared_pool: bool = False, saves: bool = False, whole_window: bool = False) -> str:
    """`llama-server` with the flags of grade full.

    `shared_pool`: its slots share one context now, so the same memory is divided among them. `saves`: it has its
    --slot-save-path already. `whole_window`: its model needs --swa-full to go on from a restored slot.
    """
    slots = max(props.total_slots, 1)
    context = props.n_ctx if shared_pool else props.n_ctx * slots
    words = [
        *("llama-server", "-m", shlex.quote(props.model_path or "MODEL.gguf")),
        *("-np", str(slots), "--no-kv-unified", "-c", str(padded(context, slots))),
        *("--cache-ram", "0", "-sps", "0", "--cache-reuse", "0", "-b", str(BATCH), "-ub", str(BATCH)),
        *(() if saves else ("--slot-save-path", SAVE_PATH)),
        *(("--swa-full",) if whole_window else ()),
    ]
    return " ".join(words)


def is_command(cure: str) -> bool:
    """Whether a cure is to be typed into a shell, and not a sentence."""
    return cure.startswith("llama-server ")


def padded(context: int, slots: int) -> int:
    """The total `-c` that gives each slot its share, which llama-server rounds up to 256 tokens."""
    return -(-context // (slots * 256)) * slots * 256
