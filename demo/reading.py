"""Questions about a text: who and what is in it, where it happens, and what a sentence of it says."""

import json

import asking
import words as w
from grammar import choose, expand
from stories import cap, tell
from tasks import Task

# A fact, and the questions that a part of it answers; the answer is `A`, or the fact itself.
FACTS = [
    ("{X} found {az} {spot}.", {"Who found {z}?": None, "[What|Which thing] did {x} find?": None, "Who saw {z} first?": "{X} found {az}.", "Where [was|did {x} find|lay] {z}?": "{Z} was {spot}.", "In which place was {z}?": "{Z} was {spot}."}),
    ("{X} lived {place}.", {"Where [did|does] {x} live?": None, "Who lived {place}?": None, "In what place did {x} live?": None, "Whose home was {place}?": None}),
    ("[Next door|Not far away|Near by] lived {intro_y}.", {"Who lived [next door|near by|not far away]?": "{Ay} lived there.", "Who was the neighbour?": "{Ay} was the neighbour."}),
    ("The best friend of {x} was {intro_y}.", {"Who was the [best |]friend of {x}?": "{Ay} was the friend of {x}.", "Which friend did {x} have?": "{Ay} was the friend of {x}.", "Whose friend was {y}?": "{Y} was the friend of {x}."}),
    ("{X} lost {his} {nz}.", {"What did {x} lose?": None, "Who lost {az}?": None, "Which thing was lost?": None, "What could {x} not find?": "{X} lost {his} {nz}."}),
    ("{X} and {y} [ate|shared] {food}.", {"What did [they|the two] eat?": "They ate {food}.", "Who ate {food}?": "{X} and {y} ate {food}.", "What was eaten?": "They ate {food}."}),
    ("{X} and {y} built a {structure}.", {"What did [they|the two] build?": "They built a {structure}.", "Who built [the|a] {structure}?": None, "What did {x} and {y} make?": "They built a {structure}."}),
    ("{X} made {craft} for the birthday of {y}.", {"Whose birthday was it?": "It was the birthday of {y}.", "Who had [a|the] birthday?": "{Y} had a birthday.", "What did {x} make?": "{X} made {craft}.", "Who made {craft}?": "{X} made {craft}."}),
    ("{X} gave {az} to {y}.", {"What did {y} get?": "{X} gave {az} to {y}.", "Who gave {z} away?": "{X} gave {az} to {y}.", "Who got {z}?": "{Y} got {z}.", "What did {x} give to {y}?": None}),
    ("{X} wanted to {skill}.", {"What did {x} want?": None, "Who wanted to {skill}?": None, "What did {x} want to do?": None}),
    ("{Y} helped {x}.", {"Who helped {x}?": None, "Whom did {y} help?": None, "Who was the helper?": "{Y} helped {x}."}),
    ("{Y} taught {x} to {skill}.", {"Who taught {x}?": None, "What did {x} learn?": "{X} learned to {skill}.", "What did {y} teach?": None}),
    ("{X} and {y} [ran|raced|walked|went] to {landmark}.", {"Where did they [go|run|walk]?": "They went to {landmark}.", "Who [went|came] to {landmark}?": "{X} and {y} went to {landmark}.", "To which place did they go?": "They went to {landmark}."}),
    ("{X} had {intro_z}.", {"What did {x} have?": "{X} had {intro_z}.", "Who had {az}?": "{X} had {az}.", "Whose was {z}?": "{X} had {z}."}),
    ("{X} heard {noise}.", {"What did {x} hear?": None, "Who heard [it|the noise|something]?": None}),
    ("{X} and {y} went to see {sight}.", {"What did they [go to |want to |]see?": "They went to see {sight}.", "Who went to see {sight}?": None}),
    ("{X} hid {z} {spot}.", {"Where did {x} hide {z}?": None, "Who hid {z}?": None, "What did {x} hide?": None, "Where is {z}[ now|]?": "{Z} is {spot}."}),
    ("{X} bought {az} at the market.", {"What did {x} buy?": None, "Who bought {az}?": None, "Where did {x} buy {z}?": "{X} bought it at the market."}),
    ("{X} was [tired|hungry|happy|sad|cold|afraid].", {"Who was {state}?": None, "How [was|did] {x}[ feel|]?": None}),
]
STARTS = ["{X} was {one_of_x}.", "Once upon a time, {intro_x} lived {place}.", "Once there was {intro_x}.", "There was {intro_x} named {name}.", "{Intro_x} and {intro_y} were friends.", "One {time}, {x} met {y}.", "{X} and {y} lived {place}.", "{X} woke up early.", "It was a [cold|warm|long|fine] day.", "It [rained|snowed] all day.", "Long ago, {intro_x} and {intro_y} lived {place}.", "One day, {x} went out with {y}."]
ENDS = ["Then they [slept|laughed|went home|sang|danced].", "{X} was [happy|glad|proud].", "It was a [good|long|fine] day.", "{Y} [smiled|laughed|sang].", "They [were friends|told nobody|came home late].", "In the evening they told stories.", "Nobody else was there.", "And that was all."]


def _slots(rng):
    """Slots of a told story, and a thing in it."""
    x, y = w.topic_pair(rng)
    z = rng.choice([t for t in w.THINGS if t not in (x, y)])
    told = tell(rng, x, y)
    s = told.slots
    adjective = rng.choice(w.LOOKS)
    plain = rng.random() < 0.5
    s |= {"z": f"the {z}", "Z": f"The {z}", "az": f"{w.article(z)} {z}", "nz": z, "intro_z": f"{w.article(adjective)} {adjective} {z}"}
    if rng.random() < 0.3:
        name = rng.choice(w.NAMES)
        if name not in (x, y):
            who = "boy" if name in w.NAMES_HE else "girl"
            he, his, him = ("he", "his", "him") if who == "boy" else ("she", "her", "her")
            s |= {"x": name, "X": name, "ax": name, "Ax": name, "nx": name, "he": he, "He": cap(he), "his": his, "His": cap(his), "him": him, "intro_x": f"a {who} named {name}", "Intro_x": f"A {who} named {name}"}
    if plain and s["intro_x"].startswith(("a ", "an ")) and " named " not in s["intro_x"]:
        s["az"] = s["intro_z"]
    return s


def _sentence(rng, template, slots):
    text = choose(rng, template)
    state = text.rsplit(" ", 1)[-1].rstrip(".")
    return cap(text.format_map(slots)), slots | {"state": state}


def fact(rng):
    """A little text with a question about one of its sentences."""
    slots = _slots(rng)
    chosen = rng.sample(FACTS, rng.choice((1, 1, 2, 2, 3)))
    sentences, asked, answers = [], [], {}
    for template, questions in chosen:
        sentence, local = _sentence(rng, template, slots)
        sentences.append(sentence)
        for question, answer in questions.items():
            text = choose(rng, question).format_map(local)
            said = cap(choose(rng, answer).format_map(local)) if answer else sentence
            asked.append(text)
            answers[text] = said if text not in answers else None
    if rng.random() < 0.6:
        start = rng.choice([s for s in STARTS if "{one_of_x}" not in s and "{name}" not in s])
        if not any(t == "{X} lived {place}." for t, _ in chosen):
            sentences.insert(0, _sentence(rng, start, slots)[0])
    if rng.random() < 0.4:
        sentences.append(_sentence(rng, rng.choice(ENDS[:6]), slots)[0])
    question = rng.choice(asked)
    if answers[question] is None:
        return fact(rng)
    return _about(rng, " ".join(sentences), question, answers[question])


def _about(rng, text, question, answer):
    prompt = rng.choice(asking.READ)
    prompt = choose(rng, prompt).format_map({"t": text, "q": question})
    return Task("reading", prompt, answer, ("reading", prompt))


def question(rng, told):
    """A question about a story that was told, and its answer."""
    kind = rng.choice(("who", "who", "who", "where", "where", "was", "part"))
    slots = told.slots
    if kind == "part" and (part := _part(rng, told)):
        return part
    if kind == "was":
        return _was(rng, told)
    text = choose(rng, rng.choice(asking.ABOUT["where" if kind == "where" else "who"]))
    if kind == "where":
        return text, f"It takes place {slots['place']}."
    return text, _who(told)


def _who(told):
    named = [t if t in w.NAMES else f"{w.article(t)} {t}" for t in (told.x, told.y)]
    return cap(f"{named[0]} and {named[1]} are in the story.")


def _was(rng, told):
    inside = rng.random() < 0.5
    topic = rng.choice((told.x, told.y))
    while not inside and (topic in (told.x, told.y) or w.mentions(told.text, topic)):
        topic = rng.choice(w.AGENTS + w.THINGS)
    asked = topic if topic in w.NAMES else f"{w.article(topic)} {topic}"
    text = choose(rng, rng.choice(asking.ABOUT["was"])).format_map({"az": asked, "Az": cap(asked)})
    return text, f"Yes, {asked} is in the story." if inside else f"No, {asked} is not in the story."


# Questions that only stories of one plot answer.
PARTS = {
    "lost": {"[What did {x} lose|What was lost|What could {x} not find]?": "{X} lost {his} {prop}.", "Where [was|did they find] [the {prop}|it|what was lost]?": "It was {spot}."},
    "race": {"Where did they [run|race]?": "They ran to {landmark}.", "Who [fell|slipped][ down|]?": "{X} fell.", "Who [won|was first]?": "They reached {landmark} at the same time."},
    "storm": {"Who was [out |]in the storm?": "{X} was in the storm.", "Who [helped|opened the door|gave shelter]?": "{Y} helped {x}."},
    "gift": {"Whose birthday was it?": "It was the birthday of {y}.", "What [was the gift|did {x} make]?": "{X} made {craft}."},
    "learn": {"What did {x} learn?": "{X} learned to {skill}.", "Who [taught|helped] {x}?": "{Y} taught {x}."},
    "share": {"What was in the bowl?": "There was {food} in the bowl.", "What did they eat?": "They ate {food}."},
    "build": {"What did they build?": "They built a {structure}."},
    "noise": {"What did {x} hear?": "{X} heard {noise}.", "What was the noise?": "It was {source}."},
    "sorry": {"What was broken?": "The {prop} was broken.", "Who broke the {prop}?": "{X} broke it."},
    "journey": {"What did they [want to |]see?": "They went to see {sight}.", "Where did they go?": "They went to {landmark}."},
    "find": {"Who found {y}?": "{X} found {y}.", "Where was {y}?": "It was {spot}.", "What did {x} find?": "{X} found {ay}."},
    "missing": {"What did {x} lose?": "{X} lost {y}.", "Where was {y}?": "It was {spot}."},
    "wish": {"What did {x} [want|wish for]?": "{X} wanted {ay}."},
    "magic": {"What did {x} [wish for|want]?": "{X} wished for rain.", "What was magic?": "{Y} was magic."},
    "lend": {"What did {x} have?": "{X} had {ay}."},
    "deep": {"What fell into the [water|pond]?": "{Y} fell into the water."},
    "contest": {"What did {x} get[ in the end|]?": "{X} got a special prize."},
    "trip": {"Who went on [a|the] trip?": "{n} went on a trip."},
    "attic": {"What did {n} find?": "{n} found {ax} and {ay}.", "Who told {n} about the old days?": "Her grandfather told her."},
    "shop": {"Who bought them?": "{n} took both home."},
    "friend": {"What did {n} give away?": "{n} gave {y} away."},
}


def _part(rng, told):
    parts = PARTS.get(told.plot["name"])
    if not parts:
        return None
    text = rng.choice(list(parts))
    return choose(rng, text).format_map(told.slots), choose(rng, parts[text]).format_map(told.slots)


def told_question(rng):
    """A story, or its beginning, with a question about it, in one prompt."""
    told = tell(rng, *w.topic_pair(rng))
    for _ in range(20):
        text, answer = question(rng, told)
        known = len(told.sentences) if "takes place" not in answer and "are in the story" not in answer else rng.randint(2, len(told.sentences))
        given = " ".join(told.sentences[:known])
        if all(w.mentions(given, t) for t in (told.x, told.y)):
            return _about(rng, given, text, answer)
    return told_question(rng)


MIX = [(fact, 12), (told_question, 5)]
