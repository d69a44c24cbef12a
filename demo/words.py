"""The words that the demo model knows: topics of stories, their lore, and plain words for spelling and counting.

Everything here was written for this project. `held_out` is the one rule that keeps pairs of words out of training.
"""

import random
import re
import zlib

HELD_OUT_ONE_IN = 32


def held_out(a, b):
    """Whether the pair (in either order) is kept for tests; no training text asks for it."""
    a, b = sorted((str(a).lower(), str(b).lower()))
    return zlib.crc32(f"{a}|{b}".encode()) % HELD_OUT_ONE_IN == 0


ANIMALS = """fox owl bear rabbit mouse cat dog frog duck goose hen pig cow horse goat sheep wolf deer badger otter
beaver squirrel hedgehog mole bat crow robin sparrow swan turtle snail bee ant spider beetle butterfly moth whale
dolphin seal crab octopus penguin lion tiger elephant giraffe zebra monkey parrot camel kangaroo koala panda lizard
snake crocodile donkey pony kitten puppy dragon unicorn hamster raven falcon heron lynx moose eagle lamb""".split()

PEOPLE_HE = "baker farmer king prince sailor pirate wizard knight tailor miller fisherman shepherd clown giant postman carpenter".split()
PEOPLE_SHE = "queen princess witch gardener painter teacher doctor pilot cook musician grandmother librarian explorer inventor dancer fairy".split()
ODD_ONES = "robot ghost snowman scarecrow star moon cloud dinosaur monster rocket".split()

NAMES_HE = "Leo Sam Ben Max Tom Finn Noah Oscar Hugo Theo Emil Jonas Felix Paul Milo".split()
NAMES_SHE = "Mia Nora Ada Ivy Lena Zoe Ella Ruby Clara Alma Anna Lucy Rosa Emma Lily".split()

THINGS = """lantern kite ball book key clock bell drum flute guitar boat ship train bicycle wagon balloon umbrella hat
coat scarf shoe boot glove ring crown mirror candle lamp basket bottle cup spoon teapot pot blanket pillow chair table
ladder hammer broom bucket rope map compass telescope letter pencil brush doll puppet puzzle box chest coin shell
feather acorn flower rose sunflower mushroom apple pear plum cherry carrot pumpkin potato cake cookie pie cheese egg
jar violin trumpet piano whistle button needle ribbon carpet window car bus truck camera radio computer phone pizza
sandwich melon lemon banana orange tomato onion pancake muffin sled skateboard scooter tent backpack suitcase wheel
magnet marble dice medal flag painting statue vase watch bracelet necklace sword shield helmet cape wand potion
diamond pearl treasure cactus snowball sandcastle anchor barrel paddle net fan mug plate fork saucepan kettle""".split()

AGENTS = ANIMALS + PEOPLE_HE + PEOPLE_SHE + ODD_ONES
NAMES = NAMES_HE + NAMES_SHE
TOPICS = AGENTS + THINGS
TOPIC_SET = set(TOPICS) | {n.lower() for n in NAMES}

TRAITS = """brave kind clever shy lazy curious gentle proud patient cheerful grumpy hungry quiet lonely honest careful
tiny old young happy sleepy silly wise friendly""".split()
LOOKS = "red blue green yellow golden silver small big old new shiny round wooden strange beautiful purple white black heavy broken".split()

# Where stories are set: what people write in a prompt, and what the story says.
PLACES = [
    ("in the forest", "in a green forest"), ("in a deep forest", "in a deep forest"), ("in the desert", "in a wide desert"),
    ("in a village", "in a small village"), ("in the city", "in a busy city"), ("on a farm", "on an old farm"),
    ("in the mountains", "high in the mountains"), ("near the sea", "near the sea"), ("on an island", "on a far island"),
    ("in a castle", "in a grey castle"), ("in a garden", "in a sunny garden"), ("in the jungle", "in a warm jungle"),
    ("in a valley", "in a peaceful valley"), ("in a swamp", "at the edge of a swamp"), ("in the snow", "in a land of snow"),
    ("in a harbour", "in a small harbour"), ("at a school", "behind an old school"), ("in a museum", "in a quiet museum"),
    ("at a river", "beside a slow river"), ("in a meadow", "in a bright meadow"), ("in a cave", "in a dark cave"),
    ("on the beach", "on a sunny beach"), ("at a market", "next to a noisy market"), ("on a hill", "on a windy hill"),
]
PLACE_KEYS = {asked: said.split()[-1] for asked, said in PLACES}

PROPS = ["little notebook", "warm jacket", "blue stamp", "glass bead", "wool sock", "silver thimble", "old photograph",
         "lucky pebble", "wooden top", "string of beads", "secret recipe", "tin bugle"]
FOODS = ["honey", "warm soup", "fresh bread", "sweet berries", "roasted nuts", "rice with herbs", "warm milk", "jam", "porridge", "corn"]
SPOTS = ["under a bush", "behind a big rock", "in the tall grass", "below the bridge", "in a hollow log", "next to the well",
         "on top of a wall", "in a puddle", "between two roots", "beside the road"]
LANDMARKS = ["the old mill", "the tall tower", "the stone bridge", "the great waterfall", "the far lighthouse", "the quiet lake",
             "the top of the hill", "the ancient gate"]
SKILLS = ["swim", "dance", "sing", "climb", "read", "skate", "hum a tune", "juggle", "draw", "bake"]
STRUCTURES = ["treehouse", "bridge", "raft", "hut", "tower of bricks", "swing", "wall of sand", "little stage"]
NOISES = [("a loud creak", "an old door in the wind"), ("a soft tapping", "a branch on a roof"), ("a deep hum", "the wind in a hollow log"),
          ("a strange rattle", "rain in a metal pipe"), ("a long howl", "the wind between the rocks"), ("a small splash", "water dripping into a pool")]
CRAFTS = ["a wreath of leaves", "a tiny garden", "a poem", "a paper chain", "a soft cushion", "a carved stick", "a song", "a row of footprints in clay"]
SIGHTS = ["the sunrise", "the northern lights", "a rainbow", "the big festival", "the first snow", "a hundred fireflies", "the falling leaves"]

ADJECTIVE_WORDS = TRAITS + LOOKS
PLAIN = """able about above across after again air almost along already also always among animal answer anything area arm
around ask baby back bad bag band bank base basic beach beat become before begin behind believe below best better between
beyond bird birth bit blood blow board body bone born both bottom branch bread break breakfast breath bridge bright bring
brother brown build building burn business busy butter buy call calm can capital care carry case castle catch cause
center chance change chapter child choose church circle city class clean clear climb close cloth coffee cold collect
color come common company complete cook cool copper corner correct cotton count country course cover cross crowd cry
culture current cut daily danger dark daughter day dead deal deep degree desert desk detail develop dinner direct
dirty discover dish distance divide door double down dream dress drink drive drop dry during dust each ear early earth
east easy eat edge effect eight either electric eleven else empty end enemy energy engine engineer enjoy enough enter
equal evening event ever every exact example except exercise expect eye face fact fall family famous farm fast father
fear feed feel few field fight figure fill final find finger finish fire first fish five flat floor fly follow food
foot force forest forget form forty forward four free fresh friend front fruit full fun garden gas gate gather general
gift girl give glad glass goal gold good grand grass gray great ground group grow guess guide habit hair half hall hand
happen harbor hard hate head health hear heart heat help hide high hill history hold hole holiday home honey hope hospital
hot hotel hour house huge human hundred hunt hurry ice idea important inch include indeed industry insect inside invent
iron island job join journey joy judge juice jump just keep kick kid kind kitchen knee knife know knowledge lady lake
land language large last late laugh law lazy lead leaf learn least leave left leg lemonade less lesson letter level
library lie life lift light like line lip list listen little live local long look lose lot love low luck lunch machine
magic main make man many march mark market master match material matter maybe meal mean measure meat meet member metal
middle might mile milk million mind minute miss mistake mix model modern moment money month morning mother motion mountain
mouth move much music must name narrow nation nature near neck need neighbor nest never news next nice night nine nobody
noise none north nose note nothing notice number object ocean offer office often oil once open opinion order other outside
oven own page pain paint pair paper parent park part party pass past path pattern pay peace pen people pepper perfect
person picture piece place plain plan planet plant play please plenty point polite poor popular position possible post
pound power practice present press pretty price print prize problem produce promise protect proud pull pupil purpose push
put quarter question quick quiet quite race rain raise reach read ready real reason receive record remember repeat reply
report rest result return rhythm rice rich ride right rise river road rock roof room root rough round row rule run sad safe
sail salt same sand save say scale school science sea search season seat second secret see seem sell send sense sentence
separate serious serve seven several shade shadow shake shape share sharp shelf shine shirt shop shore short shoulder
shout show shut side sight sign silence silk simple since sing sister sit six size skill skin sky sleep slip slow small
smell smile smoke smooth snow soap soft soil soldier solve some song soon sound south space speak special speed spell spend
spoke sport spot spread spring square stage stair stand start state station stay steam steel step stick still stomach stone
stop store storm story straight strange strawberry stream street strength string strong student study subject success such
sudden sugar suggest suit summer sun supper support sure surface surprise sweet swim system tail take talk tall taste taxi
tea team tear tell ten term test thank theater thick thin think third thirst thousand thread three throat through throw
thumb thunder ticket tie tight time tired together tomorrow tongue tool tooth top total touch toward tower town toy track
trade travel tree trip trouble true trust truth try tune turn twelve twenty twice type uncle under understand unit until
upper useful usual valley value vegetable very village visit voice wait wake walk wall want war warm wash waste water wave
way weak wear weather week weight welcome west wet wheat where while whisper whole wide wife wild will win wind winter wire
wish wonder wood wool word work world worry write wrong yard year yellow yes yesterday young zero zoo hippopotamus rhinoceros
alphabet banana mississippi hello world computer program keyboard science apple internet bookkeeper committee balloon
address accident calendar necessary beautiful different umbrella beginning tomorrow chocolate crocodile dictionary
telephone television hamburger spaghetti vanilla raspberry blueberry grapefruit pineapple watermelon cucumber""".split()

WORDS = sorted(set(AGENTS + THINGS + TRAITS + LOOKS + PLAIN + [n.lower() for n in NAMES]))
WORDS = [w for w in WORDS if 2 <= len(w) <= 14]
WORD_SET = set(WORDS)

_ONSETS = "b bl br c ch cl cr d dr f fl fr g gl gr h j k kn l m n p ph pl pr qu r s sc sh sk sl sm sn sp st str sw t th tr tw v w wh y z".split() + [""] * 4
_VOWELS = "a e i o u ai ea ee oo ou ow io y a e i o".split()
_CODAS = "b ck d f g l ll m n nd ng nk nt p r rd rk rm rn rt s sh sk ss st t tch th x ze".split() + [""] * 14
_ENDINGS = "er ing ed ly ness tion ment ful less able ous al y es s ist ity ance".split() + [""] * 14
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def made_up_word(rng):
    """A word that need not exist, of 2 to 14 letters."""
    while True:
        kind = rng.random()
        if kind < 0.55:
            parts = [rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.choice((1, 2, 2, 3)))]
            word = "".join(parts) + rng.choice(_ENDINGS)
        elif kind < 0.75:
            word = rng.choice(WORDS) + rng.choice(_ENDINGS)
        elif kind < 0.85:
            word = rng.choice(WORDS) + rng.choice(WORDS)
        elif kind < 0.95:
            word = list(rng.choice(WORDS))
            word[rng.randrange(len(word))] = rng.choice(_LETTERS)
            word = "".join(word)
        else:
            word = "".join(rng.choice(_LETTERS) for _ in range(rng.randint(2, 8)))
        if 2 <= len(word) <= 14 and word not in TOPIC_SET:
            return word


def any_word(rng):
    """A word to spell, count or reverse."""
    return rng.choice(WORDS) if rng.random() < 0.6 else made_up_word(rng)


def article(phrase):
    """`a` or `an`, as the word sounds."""
    sounds_open = phrase[0].lower() in "aeiou" and not phrase.startswith(("uni", "use", "one"))
    return "an" if sounds_open or phrase.startswith(("honest", "hour")) else "a"


def stable(text, n):
    """A number below n that depends on the text alone."""
    return zlib.crc32(text.encode()) % n


def rotated(rng, items, key):
    """One of the items: most often the one that the key prefers, so that a topic keeps its lore."""
    start = stable(key, len(items))
    if rng.random() < 0.62:
        return items[start]
    return items[(start + 1 + int(len(items) * rng.random() ** 2)) % len(items)]


def mentions(text, word):
    """Whether the text has the word, in the singular or in a plain plural or possessive."""
    return re.search(rf"\b{re.escape(word)}(s|es|'s)?\b", text, re.IGNORECASE) is not None


def topic(rng):
    """A topic of a story; now and then a word that nobody knows."""
    r = rng.random()
    if r < 0.42:
        return rng.choice(AGENTS)
    if r < 0.86:
        return rng.choice(THINGS)
    if r < 0.93:
        return rng.choice(NAMES)
    word = made_up_word(rng)
    return word if len(word) > 3 and word not in WORD_SET else topic(rng)


def topic_pair(rng, heldout=False):
    """Two topics; a pair that is kept for tests only where that is wanted."""
    while True:
        a, b = topic(rng), topic(rng)
        if a != b and held_out(a, b) == heldout and not (a in NAMES and b in NAMES):
            return a, b


def new_rng(seed):
    """A generator of its own for each purpose."""
    return random.Random(seed)
