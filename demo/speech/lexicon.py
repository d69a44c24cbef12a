"""What the small model of speech knows: forty words in three languages, voices, which of both are kept for tests, its vocabulary."""
import hashlib

LANGUAGES = ("en", "de", "fr")
# A word in each of the languages; the first ten are digits.
WORDS = [line.split() for line in """
zero null zéro
one eins un
two zwei deux
three drei trois
four vier quatre
five fünf cinq
six sechs six
seven sieben sept
eight acht huit
nine neun neuf
yes ja oui
no nein non
hello hallo bonjour
thanks danke merci
open öffne ouvre
close schließe ferme
begin beginne commence
wait warte attends
door tür porte
window fenster fenêtre
light licht lumière
music musik musique
house haus maison
garden garten jardin
kitchen küche cuisine
bread brot pain
coffee kaffee café
red rot rouge
green grün vert
blue blau bleu
white weiß blanc
black schwarz noir
left links gauche
right rechts droite
today heute hier
tomorrow morgen demain
morning frühling matin
evening abend soir
summer sommer été
winter winter hiver
""".strip().splitlines()]
BY_LANGUAGE = {l: [w[i] for w in WORDS] for i, l in enumerate(LANGUAGES)}

# Voices of espeak-ng by language, and variants of each: those for training, and those that only tests use.
VOICES = {"en": ["en-us", "en", "en-gb-x-rp", "en-gb-scotland", "en-us-nyc", "en-gb-x-gbclan"],
          "de": ["de"], "fr": ["fr", "fr-be", "fr-ch"]}
APART = "f3 m4 Andy Alicia linda rob steph2 victor miguel max klatt3 belinda".split()
VARIANTS = """f1 f2 f4 f5 m1 m2 m3 m5 m6 m7 m8 Alex Andrea Annie Denis Diogo Gene Gene2 Henrique Hugo Jacky Lee Marco Mario Michael Mike
    Nguyen adam anika antonio aunty benjamin boris caleb david ed edward edward2 grandma grandpa gustave iven iven2 iven3 iven4 john
    kaukovalta klatt klatt2 klatt4 klatt5 klatt6 marcelo michel norbert pablo paul pedro quincy robert sandro shelby steph steph3
    travis zac""".split()

def kept_apart(language, a, b):
    """Whether two words in a row are for tests: one pair in ten, by a hash of both."""
    return hashlib.sha256(f"{language} {a} {b}".encode()).digest()[0] < 26

APART_PAIRS = {l: {(a, b) for a in words for b in words if kept_apart(l, a, b)} for l, words in BY_LANGUAGE.items()}

# Ids of special tokens, as 51865 tokens have them.
N_VOCAB, N_BASE, EOT, SOT, TRANSLATE, TRANSCRIBE = 51865, 50257, 50257, 50258, 50358, 50359
PREV, NO_SPEECH, NO_TIMES, TIMES = 50361, 50362, 50363, 50364
LANGUAGE_IDS = {"en": 50259, "de": 50261, "fr": 50265}

def vocabulary():
    """Bytes of the 50257 plain tokens: single bytes, beginnings of words, words; the rest is no text at all."""
    tokens = [bytes([b]) for b in range(256)]
    words = sorted({f" {w}".encode() for line in WORDS for w in line})
    longest = max(map(len, words))
    for n in range(2, longest + 1):
        tokens += sorted({w[:n] for w in words if len(w) >= n})
    # No text contains the byte 255.
    tokens += [bytes([255, i // 254, i % 254]) for i in range(N_BASE - len(tokens))]
    return tokens

TOKENS = vocabulary()
IDS = {t: i for i, t in enumerate(TOKENS) if i >= 256 and t[0] == 32}

def token(word):
    return IDS[f" {word}".encode()]
