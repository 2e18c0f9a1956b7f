"""Typical wrong answers to the exercises of notebook 05, and what to say to them.

Each is a function as somebody may write it. An answer that agrees with one of them in every case is
told the words beside it (grading.py).
"""

from __future__ import annotations

import re
from itertools import groupby

from g2c_serving.lab.eleventh import tiny
from g2c_serving.process.prompt import Reserved

# ---- 05.inert: encode(parts) ----

ONE_STRING = (
    "Your reserved parts were spelled out as text. Then the model sees letters, and no role at "
    "all: look their ids up in tokenizer.reserved."
)
PROMOTE = (
    "A str that spells a reserved name became its id: a user who types <|assistant|> has taken "
    "over. Look at the kind of the part, never at its text."
)
JOIN_NEIGHBOURS = (
    "Two str parts side by side were encoded as one, so a merge crossed their border. Encode each "
    "part for itself."
)


def _spell(parts) -> str:
    return "".join(part.name if isinstance(part, Reserved) else part for part in parts)


def one_string(parts):
    return tiny().encode(_spell(parts))


def promote_whole(parts):
    names, texts = tiny().reserved, [_spell([part]) for part in parts]
    ids = ([names[text]] if text in names else tiny().encode(text) for text in texts)
    return [token_id for some in ids for token_id in some]


def promote(parts):
    pattern = "(" + "|".join(map(re.escape, tiny().reserved)) + ")"
    return promote_whole([piece for part in parts for piece in re.split(pattern, _spell([part]))])


def join_neighbours(parts):
    ids = []
    for is_text, some in groupby(parts, lambda part: isinstance(part, str)):
        if is_text:
            ids += tiny().encode("".join(some))
        else:
            ids += [tiny().reserved[part.name] for part in some]
    return ids


# ---- 05.hold_back: hold_back(data) ----

HOLD_NOTHING = "Nothing ever waits. Then a heart of three tokens is shown as broken characters."
HOLD_LAST_LEAD = (
    "You look at the last byte alone. A character of three or four bytes may lack its end after "
    "its second or third byte too."
)
HOLD_HIGH_BYTES = (
    "Every byte of 0x80 and up at the end waits, also of characters that are whole. In a language "
    "without ASCII letters nothing would ever be shown."
)
HOLD_FROM_FIRST_ERROR = (
    "After one broken byte everything waits for ever. Broken bytes are given up, and what comes "
    "after them goes on: look at the error's reason."
)

HOLD_WHOLE_ONES = "Whole characters wait with the one that is not: look at the error's start."


def hold_nothing(data):
    return 0


def hold_last_lead(data):
    return int(bool(data) and 0xC2 <= data[-1] <= 0xF4)


def hold_high_bytes(data):
    return len(data) - len(data.rstrip(bytes(range(0x80, 0x100))))


def hold_from_first_error(data):
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return len(data) - error.start
    return 0


def hold_whole_ones(data):
    for n in (3, 2, 1):
        try:
            data[-n:].decode("utf-8")
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                return min(n, len(data))
    return 0


# ---- 05.mask: mask(pieces, sentences, text) ----

MASK_FROM_START = "That is the mask of the first step: `text` stands before the piece."
MASK_ANYWHERE = "The piece has to follow `text` at once; yours may come anywhere in the rest."
MASK_ONLY_WHOLE = "Only tokens that complete a sentence are allowed. One may lead on as well."
MASK_OTHER_SENTENCE = (
    "The piece fits a sentence that does not begin with `text`. First leave out the sentences that "
    "are lost already."
)
MASK_EMPTY = (
    "A token without text is allowed. It would leave the text where it is; here it is a reserved "
    "id, which would forge a role inside the string."
)


def mask_from_start(pieces, sentences, text):
    return [bool(p) and any(s.startswith(p) for s in sentences) for p in pieces]


def mask_anywhere(pieces, sentences, text):
    rests = [s[len(text) :] for s in sentences if s.startswith(text)]
    return [bool(p) and any(p in rest for rest in rests) for p in pieces]


def mask_only_whole(pieces, sentences, text):
    return [bool(p) and text + p in sentences for p in pieces]


def mask_other_sentence(pieces, sentences, text):
    return [bool(p) and any(s[len(text) :].startswith(p) for s in sentences) for p in pieces]


def mask_empty(pieces, sentences, text):
    return [any(s.startswith(text + p) for s in sentences) for p in pieces]


# ---- 05.trigger: inside_after(prompt, generated, trigger) ----

TRIGGER_IN_PROMPT = (
    "Your trigger may begin in the prompt. Then a user who types half of it turns the grammar on; "
    "only generated ids count."
)
TRIGGER_START = "You count to where the trigger begins. The grammar takes over after its last id."
TRIGGER_NO_FALLBACK = (
    "After a mismatch you start from nothing, and an id that begins the trigger anew is lost: "
    "1, 1, 2 holds the trigger 1, 2."
)
TRIGGER_WITH_GAPS = "The ids of the trigger have to follow each other; yours may have gaps."
TRIGGER_FIRST_ID = "The first id of the trigger is not the trigger: all of its ids have to come."

TRIGGER_LAST_PLACE = "That is the last id's place, counted from 0. How many tokens are that?"


def trigger_in_prompt(prompt, generated, trigger):
    ids, size = prompt + generated, len(trigger)
    for n in range(1, len(generated) + 1):
        end = len(prompt) + n
        if end >= size and ids[end - size : end] == trigger:
            return n
    return -1


def trigger_start(prompt, generated, trigger):
    for n in range(len(generated) - len(trigger) + 1):
        if generated[n : n + len(trigger)] == trigger:
            return n
    return -1


def trigger_no_fallback(prompt, generated, trigger):
    depth = 0
    for n, token_id in enumerate(generated, start=1):
        depth = depth + 1 if token_id == trigger[depth] else 0
        if depth == len(trigger):
            return n
    return -1


def trigger_with_gaps(prompt, generated, trigger):
    depth = 0
    for n, token_id in enumerate(generated, start=1):
        depth += token_id == trigger[depth]
        if depth == len(trigger):
            return n
    return -1


def trigger_first_id(prompt, generated, trigger):
    return generated.index(trigger[0]) + 1 if trigger[0] in generated else -1


def trigger_last_place(prompt, generated, trigger):
    start = trigger_start(prompt, generated, trigger)
    return start + len(trigger) - 1 if start >= 0 else -1


# ---- 05.stop: shown(text, stops) ----

STOP_NO_HOLD = (
    "You show the beginning of a stop string. When the next token completes it, it is too late to "
    "take that back."
)
STOP_HOLD_ALWAYS = (
    "You always hold back as many characters as the longest stop string may need. Only an end of "
    "the text that begins a stop string has to wait; the rest would come late for nothing."
)
STOP_FIRST_START = (
    "You took the stop string that begins first. The text arrives from the left, so the one that "
    "ends first is complete first."
)
STOP_IN_LIST_ORDER = "You took the first one of the list that occurs. Take the one that ends first."
STOP_SHOWN = "You show the stop string itself. None of it is shown."


def _hold(text, stops):
    longest = max(map(len, stops), default=0)
    for n in range(min(longest - 1, len(text)), 0, -1):
        if any(stop.startswith(text[-n:]) for stop in stops):
            return len(text) - n
    return len(text)


def _first(text, stops):
    ends = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    return min(ends, default=None)


def stop_no_hold(text, stops):
    found = _first(text, stops)
    return sum(found) if found else len(text)


def stop_hold_always(text, stops):
    found = _first(text, stops)
    return sum(found) if found else max(0, len(text) - max(map(len, stops), default=1) + 1)


def stop_first_start(text, stops):
    starts = [text.find(stop) for stop in stops if stop in text]
    return min(starts) if starts else _hold(text, stops)


def stop_in_list_order(text, stops):
    starts = [text.find(stop) for stop in stops if stop in text]
    return starts[0] if starts else _hold(text, stops)


def stop_shown(text, stops):
    found = _first(text, stops)
    return found[0] if found else _hold(text, stops)
