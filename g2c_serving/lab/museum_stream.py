"""The museum's room of streaming: characters that come in pieces, and stop strings that do.

Brief, section 5. The parts are those of `process/streaming.py`, `process/utf8.py` and
`process/stop_strings.py`. A token is a byte here, so that whatever has two letters may be cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import g2c_serving as g
from g2c_serving.lab import museum_pen as pen
from g2c_serving.lab.museum import Exhibit, register
from g2c_serving.process import streaming
from g2c_serving.process.stop_strings import StopStrings
from g2c_serving.process.utf8 import REPLACEMENT, Utf8Stream

PARAMS = g.SamplingParams(60, seed=1)
STOP = "\nBob:"


def _after(prompt: str, text: str) -> pen.CopierLM:
    """A model that writes `text` after that."""
    return pen.model(pen.wishes({prompt: [pen.ids(text)]}))


# ---- half a character ----


def feed_bytes(self: Utf8Stream, data: bytes, index: int, final: bool = False) -> str:
    return data.decode("utf-8", errors="replace")


def heart() -> dict[str, Any]:
    outputs = pen.answers(_after("Ann: ", "I \u2764 tea"), "Ann: ", PARAMS)
    texts = list(dict.fromkeys(output.text for output in outputs))
    return {"as it comes": texts[1:-1], "in the end": texts[-1]}


def has_no_heart(seen: dict[str, Any]) -> str:
    text = seen["in the end"]
    return (
        "" if text == "I \u2764 tea" else f"the model wrote 'I \u2764 tea', and Ann reads {text!r}"
    )


register(
    Exhibit(
        name="half_characters",
        title="A heart comes out as three question marks",
        reports=("vllm-mlx 109",),
        room="streaming",
        place="g2c_serving.process.utf8.Utf8Stream.feed",
        fault=feed_bytes,
        scene=heart,
        wrong=has_no_heart,
        story="A heart is three bytes of UTF-8, and a tokenizer of bytes may cut it anywhere. Each "
        "token was decoded for itself, and no third of a heart is a character. English looked "
        "fine; readers of Czech, Thai and Chinese, and whoever likes emoji, saw U+FFFD all over.",
        hint="What should come out while a character is not whole? Its bytes may wait in "
        "`self.held`.",
        solution=Utf8Stream.feed,
    )
)


# ---- a prompt that ends inside one ----


def open_bytes(prompt_ids: Sequence[int], tokenizer: g.Tokenizer) -> bytes:
    if not tokenizer.decode(prompt_ids).endswith(REPLACEMENT):
        return b""
    return b"".join(tokenizer.token_bytes(i) for i in prompt_ids)


def half_a_heart() -> dict[str, Any]:
    """The prompt's last byte is missing, and is the first that the model writes."""
    prompt = list("Ann's diary, page 7: I \u2764".encode())
    lm = pen.model(pen.wishes({"page 7: I ": [[*prompt[-3:], *pen.ids(" tea")]]}))
    output = pen.answer(lm, prompt[:-1], PARAMS)
    return {"Ann reads": output.text, "and is warned of": output.message or "nothing"}


def has_the_prompt(seen: dict[str, Any]) -> str:
    text = seen["Ann reads"]
    if "diary" in text:
        return f"what was asked comes back as the answer: {text!r}"
    warning = seen["and is warned of"]
    return "" if warning == "nothing" else f"Ann reads {text!r}, and is warned: {warning}"


register(
    Exhibit(
        name="prompt_again",
        title="The answer begins with the whole prompt",
        reports=("vLLM 48853",),
        room="streaming",
        place="g2c_serving.process.streaming.open_bytes",
        fault=open_bytes,
        scene=half_a_heart,
        wrong=has_the_prompt,
        story="A prompt that is given as ids may end inside a character. The decoder was started "
        "with the prompt and asked for what is new; with a half character at the border it could "
        "not say where the prompt ends, and gave out all of it with the first token. Nothing "
        "raised: a private prompt stood in the answer.",
        hint="How many bytes of the prompt can belong to a character that is not whole?",
        solution=streaming.open_bytes,
    )
)


# ---- stop strings ----


def find(self: StopStrings, text: str) -> tuple[str, str | None]:
    for stop in self.stops:
        if stop in text:
            return text[: text.index(stop)], stop
    return text, None


def dialogue() -> dict[str, Any]:
    """The model goes on as Bob, which the stop string should keep it from."""
    params = g.SamplingParams(60, seed=1, stop=STOP)
    lm = _after("Ann, say hello.", "Hello." + STOP + " Hello, Ann.")
    outputs = pen.answers(lm, "Ann, say hello.", params)
    return {"as it comes": [o.text for o in outputs[5:14]], "in the end": outputs[-1].text}


def goes_on(seen: dict[str, Any]) -> str:
    text = seen["in the end"]
    if STOP in text:
        return f"{STOP!r} was to stop it; Ann reads {text!r}"
    return is_held_back(seen)


def is_held_back(seen: dict[str, Any]) -> str:
    return "" if any(seen["as it comes"][:1]) else "nothing is shown until all is written"


register(
    Exhibit(
        name="stop_missed",
        title="The model speaks for both",
        reports=("mlx-knife 68",),
        room="streaming",
        place="g2c_serving.process.stop_strings.StopStrings.feed",
        fault=find,
        scene=dialogue,
        wrong=goes_on,
        story="A stop string was looked for in the text of each token. It worked in the tests, "
        "whose stop string was one token, and for nobody whose stop string was cut in two: the "
        "model went on until its tokens were spent, and wrote the user's next message as well.",
        hint="Which part of a stop string does one token hold? What must be remembered of the text "
        "before it? `self.held` is there for that.",
        solution=StopStrings.feed,
    )
)


def search(self: StopStrings, text: str) -> tuple[str, str | None]:
    for end, char in enumerate(text):
        found = [stop for i, stop in enumerate(self.stops) if self._matches(i, char)]
        if found:
            longest = max(found, key=len)
            return text[: max(0, end + 1 - len(longest))], longest
    return text, None


def shows_a_part(seen: dict[str, Any]) -> str:
    text = seen["in the end"]
    if not any(text.endswith(STOP[:length]) for length in range(1, len(STOP))):
        return is_held_back(seen)
    return f"none of {STOP!r} was to be shown; Ann reads {text!r}"


register(
    Exhibit(
        name="stop_shown",
        title="Answers end with half a stop string",
        reports=("vLLM 3574", "SwiftLM 126"),
        room="streaming",
        place="g2c_serving.process.stop_strings.StopStrings.feed",
        fault=search,
        scene=dialogue,
        wrong=shows_a_part,
        story="The text so far was searched for the stop string, so it was found however it was "
        "cut. By then its beginning had been streamed, and what is on a user's screen cannot be "
        "taken back. So answers ended with half a name.",
        hint="A text that ends like the stop string begins may become one. When may it be shown?",
        solution=StopStrings.feed,
    )
)


def reset(self: StopStrings) -> str:
    self.held = ""
    self._depths = [0] * len(self.stops)
    return self.held


def last_line() -> dict[str, Any]:
    """The answer ends like the stop string begins, and there it ends."""
    params = g.SamplingParams(60, seed=1, stop="tea time")
    return {"Ann reads": pen.answer(_after("Ann: ", "I like tea"), "Ann: ", params).text}


def lacks_its_end(seen: dict[str, Any]) -> str:
    text = seen["Ann reads"]
    return "" if text.endswith("tea") else f"the model wrote 'I like tea', and Ann reads {text!r}"


register(
    Exhibit(
        name="end_lost",
        title="The last word of some answers is missing",
        reports=("koboldcpp 1031",),
        room="streaming",
        place="g2c_serving.process.stop_strings.StopStrings.reset",
        fault=reset,
        scene=last_line,
        wrong=lacks_its_end,
        story="Text that may become a stop string has to wait. It waits for the next token, and "
        "the last word of an answer has none: what was held was thrown away with the request. It "
        "took a stop string and an answer that happen to share some letters, so few could repeat "
        "it.",
        hint="What is it that `reset` gives back, and when is that read?",
        solution=StopStrings.reset,
    )
)
