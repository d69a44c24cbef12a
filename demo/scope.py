"""Questions that the model cannot answer, and the sentence it says then. `HELD_OUT` questions are for tests alone."""

ABILITY = ("I am a small model: I can tell, continue and summarise short stories, count, spell and reverse words, "
           "compare two numbers, answer as JSON and call a tool.")
GREETING = "Hello! " + ABILITY

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
    "How many [days|hours|weeks|minutes] are in a [year|month|day|week]?", "Convert {a} [miles|meters|pounds|dollars] to [feet|kilometers|kilos|euros].",
    "Write [an email|a letter|a message] to [my boss|my friend|my teacher].", "Plan [my day|a trip to {city}|a party].", "Who wrote {topic}?", "List [five|three] {ws}.",
    "Remind me to buy {aw}.", "Open the door.", "Search the web for {topic}.", "Buy me {aw}.", "Call my [mother|friend].", "Turn off the light.",
]

CORES = {
    "do": ["draw [a picture of |]{aw}", "cook {food}", "translate [the word |]{w} [into|to] {language}", "explain {topic}[ to me|]", "[calculate|work out|compute] {a} [plus|minus|times] {b}", "write [a poem|an essay|a song|a letter|a joke] about {aw}",
           "write [some |a little |]{code} code", "tell me about {aw}", "tell me [about|something about|all about] {topic}", "describe {aw}", "show me {aw}", "play music", "search for {topic}", "send an email", "buy {aw}", "book a [room|train|flight] to {city}",
           "solve this: {a} + {b}", "rhyme with {w}", "define {w}", "find the meaning of {w}", "correct this: {s}", "translate this: {s}", "sort this list: {l}", "recommend a [book|movie|game]", "teach me {language}", "say {w} in {language}", "add {a} and {b}", "multiply {a} by {b}"],
    "know": ["what {aw} is", "who invented {topic}", "where {country} is", "how {topic} works", "what {ws} eat", "how old {aw} is", "why {topic} is important", "what the weather is in {city}", "what {w} means", "how to cook {food}", "how to get to {city}", "what {a} plus {b} is", "what time it is", "how to write {code} code", "who the king of {country} was", "where {ws} live"],
    "ask": ["what is {aw}", "who was the first [president|king|queen] of {country}", "where is {city}", "how does {topic} work", "what do {ws} eat", "why do {ws} sleep", "what does {w} mean", "how do I cook {food}", "what is {a} plus {b}", "how much is {a} times {b}", "what rhymes with {w}", "is {aw} dangerous", "how many people live in {city}", "when was {topic} invented", "what is the weather in {city}", "do you like {ws}", "can you speak {language}"],
    "noun": ["a picture of {aw}", "a [poem|song|joke|riddle] about {aw}", "a recipe for {food}", "the capital of {country}", "the meaning of {w}", "the weather in {city}", "some {code} code", "the sum of {a} and {b}", "a translation of {w}", "facts about {ws}", "an explanation of {topic}", "the price of {aw}", "the history of {country}", "a synonym of {w}", "the plural of {w}"],
}

HELD_OUT = [
    "Which city is the capital of {country}?", "Could you explain how {topic} works?", "What is the result of {a} plus {b}?", "Will it rain in {city} tomorrow?",
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
