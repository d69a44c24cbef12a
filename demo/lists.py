"""Days, months, and things of a kind, in the one order in which the model names them."""

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
LENGTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
ONES = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen").split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety hundred".split()
SEASONS = ["spring", "summer", "autumn", "winter"]


def number_word(n):
    """The number in letters, where it is one word."""
    if n < 20:
        return ONES[n]
    return TENS[n // 10 - 2] if n % 10 == 0 and n <= 100 else None


# Names of a kind, and what belongs to it.
CATEGORIES = [
    (["fruits", "fruits", "kinds of fruit"], "apple banana cherry orange pear plum grape peach lemon melon"),
    (["vegetables", "kinds of vegetables"], "carrot potato tomato onion cabbage pea bean pumpkin cucumber leek"),
    (["animals", "animals", "wild animals"], "dog cat horse lion bear mouse rabbit tiger elephant fox"),
    (["farm animals", "animals on a farm"], "cow pig horse sheep goat hen duck goose donkey dog"),
    (["pets", "animals at home"], "dog cat hamster rabbit parrot pony turtle mouse canary lizard"),
    (["birds", "kinds of birds"], "robin crow owl eagle swan duck goose sparrow raven parrot"),
    (["fish", "kinds of fish"], "salmon trout tuna herring carp cod shark eel pike perch"),
    (["insects"], "bee ant fly beetle butterfly moth wasp mosquito cricket ladybird"),
    (["colors", "colours", "colors"], "red blue green yellow black white brown orange purple pink"),
    (["instruments", "musical instruments"], "piano guitar violin flute drum trumpet harp cello horn organ"),
    (["drinks", "things to drink"], "water milk tea coffee juice lemonade cocoa soda cider wine"),
    (["foods", "things to eat", "kinds of food"], "bread cheese rice soup pasta egg potato salad cake butter"),
    (["toys", "things to play with"], "ball doll kite puzzle robot train drum sled puppet marble"),
    (["tools", "tools for work"], "hammer saw drill screwdriver pliers wrench shovel rake axe ladder"),
    (["clothes", "pieces of clothing", "things to wear"], "shirt coat hat scarf shoe sock glove dress skirt jacket"),
    (["flowers", "kinds of flowers"], "rose tulip daisy lily sunflower violet orchid poppy iris lilac"),
    (["trees", "kinds of trees"], "oak pine birch maple beech willow fir elm ash poplar"),
    (["vehicles", "things that drive"], "car bus truck bicycle train tram van taxi tractor scooter"),
    (["shapes"], "circle square triangle rectangle star oval cube cone"),
    (["names", "first names"], "Tom Anna Ben Mia Leo Emma Sam Lucy Max Nora"),
    (["girls' names", "names of girls"], "Anna Mia Emma Lucy Nora Ella Clara Rosa Lily Ruby"),
    (["boys' names", "names of boys"], "Tom Ben Leo Sam Max Paul Felix Hugo Noah Oscar"),
    (["kitchen things", "things in a kitchen", "things from the kitchen"], "spoon fork knife plate cup bowl pot pan kettle glass"),
    (["pieces of furniture", "furniture words"], "table chair bed sofa shelf desk lamp cupboard bench stool"),
    (["body parts", "parts of the body"], "head arm hand leg foot eye ear nose mouth knee"),
    (["rooms", "rooms of a house"], "kitchen bedroom bathroom hall cellar attic garage office nursery pantry"),
    (["school things", "things for school"], "book pen pencil ruler paper bag desk chalk eraser notebook"),
    (["jobs", "professions"], "baker teacher doctor farmer pilot cook painter tailor sailor gardener"),
    (["sports"], "football tennis swimming running cycling skiing hockey golf rowing boxing"),
    (["letters"], "a b c d e f g h i j"),
    (["days", "weekdays", "days of the week"], " ".join(DAYS)),
    (["months", "months of the year"], " ".join(MONTHS)),
    (["seasons"], " ".join(SEASONS)),
]
