"""The word lists of the stories and chats: a few hundred words, all short.

A word list is also what a slot of the grammar may hold. The facts of a story (hero, object, place,
animal, spot, colour) come from their own lists, ten to 48 words each. Each of them is one token of
the shipped tokenizer when a space stands before it (a test checks it), so that copying a fact is
copying one token. Left out: plurals, `an`, words with two meanings in one sentence.
"""

from __future__ import annotations

GIRLS = (
    "Mia Anna Lily Rosa Nina Ella Zoe Ivy Ruth Maya Clara Lucy "
    "Emma Nora Tess Wren Dora Jane Kate Lena Sara Vera Alma Beth"
).split()
BOYS = (
    "Tom Ben Max Leo Sam Finn Hugo Jack Omar Paul Otto Theo "
    "Luke Noah Adam Carl Dan Fred Ivan Joel Kai Milo Rob Seth"
).split()

WORDS: dict[str, list[str]] = {
    # facts: drawn once a story, named again later
    "hero": GIRLS + BOYS,
    "obj": (
        "kite lamp ball drum boat coin book key hat bell cup doll map ring bag box pen rope shoe "
        "spoon flute scarf basket candle mirror bucket button blanket lantern whistle ribbon "
        "puzzle feather marble compass pot jar coat"
    ).split(),
    "color": "red blue green yellow golden silver white black brown pink".split(),
    "place": (
        "village forest garden valley castle farm town meadow harbor mountain market school "
        "bakery mill tower beach lake river sea park"
    ).split(),
    "animal": (
        "fox rabbit bear cat dog bird mouse frog duck horse goat sheep pig cow wolf turtle crow "
        "deer hen pony"
    ).split(),
    "spot": (
        "bridge tree rock fence bench wall hill well bush gate cart barn tent shed door log"
    ).split(),
    # agreement: decided by the kind of the hero
    "kind": ["girl", "boy"],
    "pron": ["she", "he"],
    "Pron": ["She", "He"],
    "poss": ["her", "his"],
    "Poss": ["Her", "His"],
    # free: drawn anew at each place
    "trait": "kind wise clever gentle brave shy happy little quiet funny proud young".split(),
    "weather": "sunny windy rainy cold warm cloudy".split(),
    "time": "morning day evening afternoon".split(),
    "family": "mother father sister brother aunt uncle grandmother grandfather".split(),
    "prep": "behind under near beside".split(),
    "stuff": "wood paper clay wool glass".split(),
    "thief": "goblin giant wizard pirate troll".split(),
    "treat": ["piece of bread", "sweet apple", "warm hug", "big smile", "bowl of soup"],
    "sad": "sad worried upset afraid lost".split(),
    "glad": "happy glad proud thankful cheerful".split(),
    "count": "two three four five six seven eight nine ten".split(),
}

CITIES = "Paris Rome Cairo Lima Oslo Delhi Tokyo Quito Dublin Malmö Nairobi Boston".split()
SKIES = "sunny windy rainy cold warm cloudy".split()
SONGS = "lullaby march waltz polka jig hymn".split()
EMOJI = ["\U0001f49b", "\U0001f388", "\U0001f31f", "\U0001f44b"]  # heart, balloon, star, hand

PREAMBLES = (
    "You are a kind helper who lives near the sea. You answer every question in one short and "
    "clear sentence. You know many stories about boys and girls, about animals that can talk, and "
    "about things that were lost and found again. If somebody tells you a name, you remember it "
    "and use it. If somebody asks for the weather, for a sum, for a song, for a timer or for a "
    "lost thing, you call a tool and wait for the result before you answer. You never make up a "
    "result. You are always happy to help, and you say so with a big smile.",
    "You are the teller of stories in a small village. Each evening the people come to your house "
    "by the river, and each of them asks for a story or for help. Rules of the house: one. Be "
    "gentle with everyone who comes. Two. Use the name of the guest when you know it. Three. Think "
    "before you answer a question with numbers. Four. When you do not know something, use a tool: "
    "weather, add, find, timer or play. Five. A story begins with a boy or a girl, and ends well. "
    "Six. Nobody goes home sad. These rules were written on the wall long ago by your grandmother, "
    "and you have always kept them, on sunny days and on rainy days.",
    "You are a clever fox who works in a school. The children ask you about numbers, about names, "
    "about colors and about the places of their things. You listen first, then you think, then you "
    "answer. You have five tools. The tool weather needs a city. The tool add needs two numbers, a "
    "and b. The tool find needs a thing. The tool timer needs the minutes. The tool "
    "play needs a song. You call one tool at a time.",
    "This is a quiet room in a big castle. The guest asks and you answer. Keep your answers short, "
    "be brave and honest, and be proud of your work. Say hello to a guest who says hello. Remember "
    "who has which thing: the kite, the lamp, the ball, the drum, the boat or the key. Remember "
    "where each thing is: behind the bridge, under the tree, near the rock or beside the fence. "
    "When the guest wants a story, tell one from the beginning to the end, with a friend who helps "
    "and a treasure that comes back. When the guest wants a sum, write it down and check it twice. "
    "When the guest is lost or afraid, be gentle and offer a warm cup of tea. Use the "
    "tools of this room with care and put them back. The guest may stay as long as the candle "
    "burns.",
)

FACTS = ("hero", "obj", "color", "place", "animal", "spot")
AGREEMENT = ("kind", "pron", "Pron", "poss", "Poss")
