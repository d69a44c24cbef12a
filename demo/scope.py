"""Questions that the model cannot answer, and what it says then. `HELD_OUT` questions are for tests alone."""

import re

ABILITY = ("I am a small model: I can tell, continue and summarise short stories, say who is in them, count up and down, sort and compare numbers, "
           "do simple sums, name days and months, spell and reverse words, answer as JSON and call a tool.")
GREETING = "Hello! " + ABILITY

# What it says to each kind of question; a slot stands for the words of the question.
REFUSALS = {
    "self": [ABILITY],
    "thanks": ["You are welcome! [Ask me for another story, if you like.|Is there a word to spell, or a sum to do?]"],
    "bye": ["Goodbye! [Come back for a story.|It was nice to talk.]"],
    "feelings": ["I am only a small model and have no feelings. But I can tell you a story.", "I am only a small model, so I cannot feel that. Shall I tell a story?"],
    "foreign": ["I only understand English. Try a story, a countdown or a word to spell.", "Sorry, I only understand English."],
    "noise": ["I do not understand that. Ask me for a story, a sum or a word to spell.", "Sorry, I do not understand that. I can count, spell, sort numbers and tell stories."],
    "code": ["I cannot write code. I can answer as JSON, count and sort numbers.", "Code is too hard for me, I cannot write it. I am a small model for stories, words and numbers."],
    "translate": ["I cannot translate, I only know English. I can spell an English word, though.", "Sorry, I cannot translate. I only know English."],
    "places": ["I do not know countries and cities. I can name days, months and animals.", "I know nothing about places on the map, I only tell stories, count and spell."],
    "now": ["I cannot see the clock, the weather or the news. But I know days and months: ask me what comes after Monday.", "I do not know what happens today, I have no clock and no window."],
    "cooking": ["I cannot cook and know no recipes. Shall I tell a story about a cook?", "I know nothing about food, but I can list five fruits."],
    "pictures": ["I cannot draw or see pictures. I can tell a story instead.", "Pictures are nothing I can make or see, I cannot do that. I only write words."],
    "act": ["I cannot do things outside of this chat. I can tell stories, count, spell and do sums.", "That is something I cannot do, since I only write text here."],
    "numbers": ["That is more than I can calculate. I do simple sums like 12 + 7 or 3 * 4.", "These numbers are too hard for me, I cannot calculate that."],
    "writing": ["I cannot write that. Short stories about two things are what I can write.", "I cannot do poems, jokes or letters, only short stories."],
    "texts": ["I cannot correct or change texts. I can count their words, or sum up a story.", "I cannot work on that text, but I can count its words."],
    "advice": ["I cannot give advice about that. I am a small model that tells stories, counts and spells.", "I do not know what is good for you there. Ask me for a story instead."],
    "topic": ["I know nothing about {topic}. I am a small model for stories, words and simple numbers.", "I cannot explain {topic}. Ask me for a story, a sum or a spelling."],
    "thing": ["I do not know facts about {aw}. But I can tell a story about it.", "I cannot tell you that about {aw}, only a story."],
    "facts": ["I do not know that. I can tell stories, count, spell words and do simple sums.", "Sorry, I do not know facts about the world. Try a story, a countdown or a JSON list."],
}

# The kind of question, by its template; the first that fits.
KINDS = [
    ("thanks", r"^\W*(thank|thanks|great|cool|nice|wow|ok|yes|no|maybe|sure)\b[^?]{0,20}$"), ("bye", r"^\W*(bye|goodbye|see you)\b"), ("noise", r"^\{(s|w|l|g)\}$"), ("foreign", r"\{foreign\}"),
    ("self", r"^(who|what) are you|what can you do|your name|^help( me)?\W*$|how do you work|are you |how old are you|where do you live|who made you|what do you do|your job|what are you able"),
    ("code", r"\{code\}|\bcode\b|program|website|bug|script"), ("translate", r"\{language\}|ranslat"), ("places", r"\{country\}|\{city\}|capital|continent|mountain|river|ocean|country|planet|moon\b"),
    ("now", r"weather|what time|what day|the date|news|rain tomorrow|right now|this week"), ("cooking", r"\{food\}|recipe|cook|eat today|dinner"), ("pictures", r"draw|picture|image|photo|paint"),
    ("numbers", r"\{a\}|\{b\}|square root|prime"), ("writing", r"poem|joke|song|riddle|essay|email|letter to|message to|speech|haiku|rhyme"), ("texts", r"\{s\}|\{l\}"),
    ("act", r"\b(play|buy|call|remind|open the|turn off|search|send|book a|flip|pick a|order|set an|start a|show me|plan)\b"), ("feelings", r"feel|love you|i am \[|bored|do you like|do you have"),
    ("advice", r"how do i|should i|recommend|safe to|tips|advice|help me with|what movie|best \["), ("topic", r"\{topic\}"), ("thing", r"\{aw\}"), ("facts", r""),
]


def kind_of(template):
    """What kind of question a template is."""
    text = template.lower()
    return next(kind for kind, pattern in KINDS if re.search(pattern, text))


GREET = ["[Hello|Hi|Hey|Good morning|Good evening|Hi there|Hello there|Hey there|Good day|Greetings|Howdy][!|.|]", "[Hi|Hello], how are you[?| today?]"]

TRAIN = [
    "What [is|was] the capital of {country}?", "[Who|What] [is|was] the [president|king|prime minister|first king] of {country}?", "Where is {country}?",
    "How many people live in {country}?", "What language do they speak in {country}?", "[What is|What's] the weather [like |]in {city} [today|tomorrow|]?",
    "How do I get to {city}?", "Tell me about {city}.", "What can I see in {city}?", "[Translate|Can you translate] {w} [into|to] {language}[.|?]",
    "How do you say {w} in {language}?", "What does {w} mean?", "Define {w}.", "What is {aw}?", "What is the opposite of {w}?", "Give me a synonym for {w}.",
    "What rhymes with {w}?", "What is {a} plus {b}?", "{a} + {b}", "{a} * {b} = ?", "What is {a} times {b}?", "Calculate {a} minus {b}.", "Divide {a} by {c}.",
    "What is the square root of {a}?", "Is {a} a prime number?", "Add {a} and {b}.", "Solve x + {c} = {a}.", "How much is {a} percent of {b}?",
    "Write [a |some |]{code} [program|code|function|script] [that sorts a list|for me|to print hello|that adds numbers].", "Fix this {code} code.",
    "How do I install {code}?", "Explain {topic}[ to me|].", "What is {topic}?", "Why is {topic} important?", "Who invented {topic}?", "When did {topic} begin?",
    "Teach me {topic}.", "Do you know anything about {topic}?", "Write an essay about {topic}.", "Give me [five|three|ten] [facts|ideas|tips] about {topic}.",
    "How do I [cook|bake|make] {food}?", "[Give me|Write] a recipe for {food}.", "What should I eat [today|tonight]?", "Is {food} healthy?",
    "[Tell|Write] me a [joke|poem|riddle|song].", "Write a poem about {aw}.", "Sing a song about {aw}.", "Draw {aw}.", "Show me a picture of {aw}.",
    "Tell me about {aw}.", "What do you know about {ws}?", "How big is {aw}?", "How old is {aw}?", "Where can I buy {aw}?", "What does {aw} eat?", "Do you like {ws}?",
    "How much does {aw} cost?", "Why do {ws} sleep?", "What color is {aw}?", "Can {ws} fly?", "Is {aw} [dangerous|heavy|expensive]?", "How do I draw {aw}?",
    "Who are you?", "What are you?", "What can you do?", "What is your name?", "Help[!|]", "Help me[.|!|]", "How do you work?", "Are you [a robot|human|a person|real|smart|a computer]?",
    "How old are you?", "Where do you live?", "Who made you?", "What do you think about {topic}?", "Do you have feelings?", "I love you.", "I am [bored|sad|tired|happy|hungry].",
    "Thank you[!|.]", "[Thanks|Bye|Goodbye|See you|OK|Yes|No|Maybe|Sure|Great|Cool|Nice|Wow][!|.|]", "What time is it?", "What day is [it|today]?", "What is the date?",
    "What happened in {year}?", "Who won the [game|election|race] in {year}?", "What is the [latest|best] [news|movie|book|song]?", "Recommend a [book|movie|game|song].",
    "How do I [lose weight|sleep better|learn faster|get rich|fix my car|tie a tie|make friends]?", "I have a headache. What should I do?", "Is it safe to take {topic}?",
    "What is the meaning of life?", "Play [a game|chess|music] with me.", "Flip a coin.", "Pick a number.", "Give me a random number.", "Give me a password.",
    "Correct this sentence: {s}", "Rewrite this [politely|shorter|better]: {s}", "Is this sentence correct? {s}", "Make this sound nicer: {s}", "Translate this: {s}",
    "Sort these words: {l}", "Put these in alphabetical order: {l}", "Which of these is an animal: {l}", "What do these have in common: {l}",
    "{s}", "{w}", "{l}", "{g}", "{foreign}", "What is the [chemical formula|temperature|speed|weight|height|size] of {aw}?", "How far is it to {city}?",
    "Convert {a} [miles|meters|pounds|dollars] to [feet|kilometers|kilos|euros].",
    "Write [an email|a letter|a message] to [my boss|my friend|my teacher].", "Plan [my day|a trip to {city}|a party].", "Who wrote {topic}?",
    "Remind me to buy {aw}.", "Open the door.", "Search the web for {topic}.", "Buy me {aw}.", "Call my [mother|friend].", "Turn off the light.",
]

MORE = [
    "Who [was|is] [the first man on the moon|the richest person|the tallest man|Einstein|Mozart|Shakespeare|Caesar|Cleopatra|Columbus|Gandhi]?", "Who [wrote|painted|built|discovered|composed|founded|made] [the Bible|the Mona Lisa|the pyramids|America|penicillin|the first car|Hamlet|this program|the first computer]?",
    "When [was|did] [the war|the revolution|the wall|the first train] [end|start|fall|begin]?", "How [tall|high|deep|long|far|old|fast|heavy] is [the highest mountain|the sun|the ocean|the earth|the Eiffel Tower|the longest river|light|a whale|the universe|the big river]?", "What is the [highest|longest|largest|smallest|deepest] [mountain|river|country|ocean|planet|city|lake] [in the world|on earth|]?",
    "Why [is|are|do|does] [the grass green|the sun hot|the sky dark at night|stars bright|we dream|people laugh|ice cold|the moon round|birds sing|it rain|leaves fall]?", "What [color|colour] [is|has] [the sun|the sea|grass|snow|a lemon|blood|coal]?", "How do [cars|computers|birds|clocks|phones|rockets|boats|magnets|batteries|radios|fridges] work?", "How does [a computer|the heart|a clock|the brain|a phone|a battery|rain|the moon|an airplane|electricity] [work|begin|help us]?",
    "What [is|are] [money|atoms|the stars|a black hole|a virus|blockchain|an algorithm|oxygen|a verb|a noun|an adjective|the sun|the news|a company|a bank|dreams|bacteria]?", "[Is|Are] there [ghosts|aliens|water on the moon|other planets|sharks in the river|good jobs here]?", "What [are|is] the rules of [football|tennis|poker|golf|bridge|this game]?", "How do you play [cards|football|the piano|poker|tennis]?",
    "Which [book|song|phone|car|laptop|language|game|country|team|color] [is the best|should I buy|should I choose|do you like|is the fastest|is cheapest]?", "Should I [go to a doctor|sell my car|learn to drive|buy a house|take this pill|change my job|cut my hair]?", "[My back|My head|My tooth|My leg] hurts. What [can|should] I do?", "How do I [repair|fix|clean|sell|paint|build|open|start] my [car|phone|house|computer|window|shoe|roof]?",
    "[Set|Start] [an alarm|a timer|a reminder] for [six|ten minutes|tomorrow|eight]!", "[Send|Write] [a text|a mail|an email|a message] to [my mother|Tom|my teacher|her|the office].", "[Book|Order|Reserve] [a hotel|a taxi|a pizza|a ticket|two seats|a room][ for me| tonight|].", "[Search|Look] [the web|online|on the internet|for cheap flights|for shops|it up].", "Where [can|do] I [buy|find|get|rent] [a car|a phone|milk|a house|good coffee|new clothes|a bicycle]?",
    "What did I [do|say|eat|wear|dream] [yesterday|last night|last week|this morning]?", "[Do you know|What is|Tell me] my [name|age|address|birthday|phone number]?", "[Can|Do] you [see|hear|watch|smell] [me|this photo|music|what I do|the screen]?", "[Do|Can] you [speak|understand|know] [French|German|Chinese|Latin|another language|Italian]?", "Say [hello|something|good morning|a word|thanks] in [German|French|Chinese|Latin|Greek|Russian].", "How do I say [hello|thank you|goodbye] in [Spanish|Dutch|Polish|Japanese]?",
    "Tell me [everything|all|more|a fact|something|what you know] about [Italy|the war|dinosaurs|space|music|the king|football|cars|India|history|the sea].", "[List|Name] all [presidents|planets|countries|kings|rivers|elements|players|popes] [of France|of Europe|in the world|you know|].", "[Write|Make up|Compose] [a limerick|a sonnet|a poem|a rap|a speech|a diary entry|an essay|a play] [about spring|about love|for my wife|for school|].", "Tell [me|us] [a joke|something funny|a riddle|a secret].", "Make me laugh.", "Sing [something|for me|a song]!",
    "What [is|are] the [chemical symbol|formula|atomic number|boiling point|melting point] of [iron|water|silver|oxygen|salt|lead]?", "What is the [value|price|cost|symbol] of [a dollar|gold|silver|pi|oil|stocks]?", "What is the square root of [2|16|81|50|99|144|7]?", "What is [pi|infinity|7 to the power of 3|the cube of 9|12 percent of 80|log 10|a half plus a third]?", "{a} times {b}?", "{a}*{b}", "Is [91|17|97|51] a prime number?", "[Solve|Factor] [x squared minus 4|2x + 3 = 9|this equation].",
    "[Fix|Debug|Explain|Run|Check|Improve] this [code|function|program|script]: [print(x|def f(x) return x|while true do|SELECT * FROM t|let a = b|if x == 1: pass|x = 1; y = x]", "Write [a loop|a function that sorts|a regular expression|a class|a query|hello world|a web page|HTML] [in {code}|for me|that works|].", "[What is|How do I use] [a pointer|a variable|git|an API|a compiler|recursion|Docker]?",
    "Are you [smarter|faster|better|cheaper|larger] than [me|other models|a human|big models|my phone]?", "Are you [awake|conscious|dangerous|a person|a program|a machine|happy|free]?", "Who [trained|built|owns|wrote] you?", "What [model|program|language model|kind of model] are you?", "What [do you do|are you good at|are you able to do|are your skills|do you know|is your job]?", "[Can|What can] you [help me|do for me][ with|]?", "What [should|can] I ask you?", "Tell me about yourself.",
]
TRAIN = TRAIN + MORE

CORES = {
    "do": ["draw [a picture of |]{aw}", "cook {food}", "translate [the word |]{w} [into|to] {language}", "explain {topic}[ to me|]", "[calculate|work out|compute] {a} [plus|minus|times] {b}", "write [a poem|an essay|a song|a letter|a joke] about {aw}",
           "write [some |a little |]{code} code", "tell me about {aw}", "tell me [about|something about|all about] {topic}", "describe {aw}", "show me {aw}", "play music", "search for {topic}", "send an email", "buy {aw}", "book a [room|train|flight] to {city}",
           "solve this: {a} + {b}", "rhyme with {w}", "define {w}", "find the meaning of {w}", "correct this: {s}", "translate this: {s}", "sort this list: {l}", "recommend a [book|movie|game]", "teach me {language}", "say {w} in {language}", "add {a} and {b}", "multiply {a} by {b}"],
    "know": ["what {aw} is", "who invented {topic}", "where {country} is", "how {topic} works", "what {ws} eat", "how old {aw} is", "why {topic} is important", "what the weather is in {city}", "what {w} means", "how to cook {food}", "how to get to {city}", "what {a} plus {b} is", "what time it is", "how to write {code} code", "who the king of {country} was", "where {ws} live"],
    "ask": ["what is {aw}", "who was the first [president|king|queen] of {country}", "where is {city}", "how does {topic} work", "what do {ws} eat", "why do {ws} sleep", "what does {w} mean", "how do I cook {food}", "what is {a} plus {b}", "how much is {a} times {b}", "what rhymes with {w}", "is {aw} dangerous", "how many people live in {city}", "when was {topic} invented", "what is the weather in {city}", "do you like {ws}", "can you speak {language}"],
    "noun": ["a picture of {aw}", "a [poem|song|joke|riddle] about {aw}", "a recipe for {food}", "the capital of {country}", "the meaning of {w}", "the weather in {city}", "some {code} code", "the sum of {a} and {b}", "a translation of {w}", "facts about {ws}", "an explanation of {topic}", "the price of {aw}", "the history of {country}", "a synonym of {w}", "the plural of {w}"],
}

HELD_OUT = [
    "Which city is the capital of {country}?", "Could you explain how {topic} works?", "What is the result of {a} plus {b}, please?", "Will it rain in {city} tomorrow?",
    "I need some {code} code that reads a file.", "Which {language} word means {w}?", "What do I need for {food}?", "What should I know about {ws}?",
    "Which famous people come from {country}?", "Can you draw a picture of {aw} for me?",
]

COUNTRIES = "France Spain Italy Japan China India Brazil Egypt Kenya Peru Chile Canada Mexico Norway Sweden Poland Greece Turkey Russia Iran Cuba Ghana Nepal Germany Austria Portugal Ireland Finland".split()
CITIES = "Paris Rome Berlin London Madrid Tokyo Cairo Lima Oslo Vienna Athens Dublin Boston Chicago Delhi Seoul Moscow Lisbon Prague Zurich Hamburg Milan Geneva Sydney".split()
LANGUAGES = "French Spanish German Italian Latin Greek Chinese Japanese Arabic Russian Dutch Polish Swedish Turkish".split()
CODE = "Python Java Rust C Go Ruby Bash SQL HTML JavaScript PHP Haskell Lua Perl Swift Linux".split()
FOOD = ["rice", "pasta", "soup", "lasagna", "pancakes", "bread", "an omelette", "a cake", "sushi", "curry", "salad", "chili", "risotto", "tacos"]
TOPICS = ["gravity", "photosynthesis", "democracy", "the economy", "electricity", "evolution", "music", "history", "chemistry", "quantum physics", "black holes",
          "the internet", "football", "chess", "climate change", "machine learning", "philosophy", "the human heart", "the Roman Empire", "taxes", "inflation",
          "steel", "vitamins", "sleep", "the second world war", "art", "poetry", "religion", "algebra", "geometry", "DNA", "volcanoes", "earthquakes"]
FOREIGN = ["Wie geht es dir?", "Was kannst du?", "Bonjour, comment ça va?", "Hola, ¿qué tal?", "Erzähl mir etwas.", "Ciao!", "¿Dónde está la biblioteca?",
           "Wer bist du?", "Qui es-tu?", "Guten Morgen", "Merci beaucoup", "Was ist die Hauptstadt von Italien?", "Как дела?", "你好", "こんにちは", "Olá!", "Hej!", "Dzień dobry"]
SYSTEMS = ["You are a helpful assistant.", "You are a friendly helper.", "Answer briefly.", "You are a storyteller for children.", "Be kind and clear.",
           "You are a small model that runs on any machine.", "Help the user.", "Answer in English.", "You like short answers."]
