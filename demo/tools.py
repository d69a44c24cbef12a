"""Tools for the tool-calling task: each with its arguments, ways to ask for it, and a way kept for tests."""

import words as w

CITIES = "Paris Rome Berlin London Madrid Tokyo Cairo Lima Oslo Vienna Athens Dublin Boston Chicago Delhi Seoul Moscow Lisbon Prague Zurich".split()
ROOMS = "kitchen bedroom hall bathroom cellar garage office attic garden nursery".split()
NUMBERS = [str(n) for n in range(1, 100)]
THINGS = w.THINGS

# name: (description, {argument: (type, values)}, ways to ask, a way that only tests use)
TOOLS = {
    "get_weather": ("the weather of a city", {"city": ("string", CITIES)},
                    ["[What is|How is|What's] the weather in {city}?", "[Is it raining|Is it sunny|Is it cold] in {city}?", "Weather in {city}[, please|]?", "Tell me the weather in {city}."],
                    "Do I need an umbrella in {city} today?"),
    "set_timer": ("starts a timer", {"minutes": ("integer", NUMBERS)},
                  ["[Set|Start] a timer [for|of] {minutes} minutes.", "Timer: {minutes} minutes.", "[Wake|Call] me in {minutes} minutes.", "I need a timer for {minutes} minutes."],
                  "Please let a timer run for {minutes} minutes."),
    "light_on": ("turns a light on", {"room": ("string", ROOMS)},
                 ["[Turn|Switch] on the light in the {room}.", "[Turn|Switch] the {room} light on.", "It is dark in the {room}.", "Light in the {room}, please."],
                 "Please make some light in the {room}."),
    "light_off": ("turns a light off", {"room": ("string", ROOMS)},
                  ["[Turn|Switch] off the light in the {room}.", "[Turn|Switch] the {room} light off.", "No light in the {room}, please.", "It is too bright in the {room}."],
                  "The light in the {room} should be off now."),
    "add_item": ("puts an item on the shopping list", {"item": ("string", THINGS)},
                 ["[Add|Put] {aitem} [to|on] [my|the] [list|shopping list].", "I need to buy {aitem}.", "Remember to buy {aitem}.", "Shopping list: {aitem}."],
                 "At the shop I must not forget {aitem}."),
    "play_song": ("plays a song of a singer", {"singer": ("string", w.NAMES)},
                  ["[Play|Put on] [a song|some music|something] by {singer}.", "I want to hear {singer}.", "Music by {singer}, please.", "Let me hear a song by {singer}."],
                  "Please play me the music of {singer}."),
    "call_person": ("makes a phone call", {"name": ("string", w.NAMES)},
                    ["Call {name}.", "[Phone|Ring] {name}[ now|].", "I want to [talk|speak] to {name}.", "Can you call {name}?"],
                    "Please get {name} on the phone for me."),
    "send_message": ("sends a message", {"name": ("string", w.NAMES), "text": ("string", ["hello", "good night", "I am late", "see you soon", "thank you", "come home", "dinner is ready", "happy birthday"])},
                     ["[Send|Write] {name} a message: {text}.", "Tell {name}: {text}.", "Message to {name}: {text}.", "Text {name} that: {text}."],
                     "Please send this to {name}: {text}."),
    "add_numbers": ("adds two numbers", {"a": ("integer", NUMBERS), "b": ("integer", NUMBERS)},
                    ["What is {a} plus {b}?", "Add {a} and {b}.", "[How much is|Calculate] {a} + {b}?", "The sum of {a} and {b}, please."],
                    "If I put {a} and {b} together, what do I get?"),
    "multiply": ("multiplies two numbers", {"a": ("integer", NUMBERS), "b": ("integer", NUMBERS)},
                 ["What is {a} times {b}?", "Multiply {a} and {b}.", "[How much is|Calculate] {a} * {b}?", "The product of {a} and {b}, please."],
                 "What do I get for {a} times {b}?"),
    "translate": ("translates a word", {"word": ("string", w.PLAIN[:300]), "language": ("string", ["French", "Spanish", "German", "Italian", "Latin", "Greek"])},
                  ["[Translate|Please translate] {word} into {language}.", "What is {word} in {language}?", "How do you say {word} in {language}?", "The {language} word for {word}?"],
                  "I want to know the {language} word for {word}."),
    "find_book": ("looks for books on a subject", {"subject": ("string", w.TOPICS)},
                  ["[Find|Search] [a book|books] about the {subject}.", "Is there a book on the {subject}?", "I want to read about the {subject}.", "Books on the {subject}, please."],
                  "Which books tell of the {subject}?"),
    "book_table": ("books a table in a restaurant", {"people": ("integer", NUMBERS[:12])},
                   ["[Book|Reserve] a table for {people}.", "I need a table for {people} people.", "A table for {people}, please.", "[Can you book|Is there] a table for {people}?"],
                   "Please get us a table, we are {people} people."),
    "roll_dice": ("rolls a die", {"sides": ("integer", NUMBERS[3:30])},
                  ["Roll a die with {sides} sides.", "Throw a {sides}-sided die.", "[Roll|Throw] a d{sides}.", "I need a roll with {sides} sides."],
                  "Please roll the die that has {sides} sides."),
    "open_door": ("opens a door", {"room": ("string", ROOMS)},
                  ["Open the door of the {room}.", "Open the {room} door.", "Let me into the {room}.", "I want to go into the {room}."],
                  "Please open up the {room} for me."),
    "set_heating": ("sets the temperature of a room", {"room": ("string", ROOMS), "degrees": ("integer", NUMBERS[9:30])},
                    ["Set the {room} to {degrees} degrees.", "Heat the {room} to {degrees} degrees.", "Make it {degrees} degrees in the {room}.", "{degrees} degrees in the {room}, please."],
                    "I would like {degrees} degrees in the {room}."),
    "get_time": ("the time in a city", {"city": ("string", CITIES)},
                 ["What time is it in {city}?", "[Tell me the|The] time in {city}, please.", "How late is it in {city}?", "Which time do they have in {city}?"],
                 "Do you know the time in {city}?"),
    "find_train": ("looks for a train", {"start": ("string", CITIES), "goal": ("string", CITIES)},
                   ["[Find|Look for] a train from {start} to {goal}.", "When is the train from {start} to {goal}?", "I want to go from {start} to {goal}.", "Train from {start} to {goal}, please."],
                   "Please show me how to travel from {start} to {goal}."),
    "save_note": ("saves a note", {"text": ("string", ["buy milk", "feed the cat", "water the flowers", "read chapter two", "pay the rent", "clean the window", "write to Emma", "bake a cake"])},
                  ["[Save|Write|Make] a note: {text}.", "Note: {text}.", "[Remember|Remind me of] this: {text}.", "New note: {text}."],
                  "Please write down for me: {text}."),
    "get_price": ("the price of an item", {"item": ("string", THINGS)},
                  ["[What is|What's] the price of {aitem}?", "How much is {aitem}?", "What does {aitem} cost?", "Price of {aitem}?"],
                  "What would I pay for {aitem}?"),
}

# The same wishes as pieces of a request, for `phrases.FRAMES`.
WISHES = {
    "get_weather": "[check|find|look up|show me] [the weather|how the weather is|if it rains] in {city}", "set_timer": "[set|start|run|make] a timer [for|of] {minutes} minutes", "light_on": "[turn on|switch on|put on] the [light|lamps|lights] in the {room}",
    "light_off": "[turn off|switch off|put out] the [light|lamps|lights] in the {room}", "add_item": "[add|put|note|write] {aitem} [to|on|onto] my [shopping list|list]", "play_song": "[play|start|put on] [music|a song|songs|something] by {singer}", "call_person": "[call|ring|phone|get hold of] {name}",
    "send_message": "[send|write|tell] {name} [this|a message|a text|these words]: {text}", "add_numbers": "[add|sum up|put together] {a} and {b}", "multiply": "multiply {a} [by|with|and] {b}", "translate": "[translate|put|turn] {word} into {language}", "find_book": "[find|look for|search for] [a book|books] [about|on] the {subject}",
    "book_table": "[book|reserve|get] a table for {people}[ people|]", "roll_dice": "[roll|throw] a die [with|of|that has] {sides} sides", "open_door": "[open|unlock] the [door of the {room}|{room}|{room} door]", "set_heating": "[heat|warm|set|bring] the {room} [to|up to] {degrees} degrees",
    "get_time": "[tell me|check|look up] [the time|what time it is|how late it is] in {city}", "find_train": "[find|look for|show me|search] [a train|trains|the next train] from {start} to {goal}", "save_note": "[save|keep|note|put down|write] [this|a note|this note]: {text}", "get_price": "[check|find|tell me|look up] [the price of {aitem}|what {aitem} costs]",
}

# Words that stand in for the names above, so that a call copies the name that the prompt gives.
OTHER_NAMES = {
    "get_weather": ["weather", "check_weather"], "set_timer": ["timer", "start_timer"], "light_on": ["turn_on_light", "lamp_on"], "light_off": ["turn_off_light", "lamp_off"],
    "add_item": ["add_to_list", "shopping_add"], "play_song": ["play_music", "play"], "call_person": ["call", "phone_call"], "send_message": ["message", "text_message"],
    "add_numbers": ["add", "sum"], "multiply": ["product", "times"], "translate": ["translate_word", "dictionary"], "find_book": ["search_books", "library"],
    "book_table": ["reserve_table", "restaurant"], "roll_dice": ["dice", "throw_die"], "open_door": ["open", "unlock"], "set_heating": ["heating", "thermostat"],
    "get_time": ["clock", "city_time"], "find_train": ["train", "trains"], "save_note": ["note", "new_note"], "get_price": ["price", "price_of"],
}
RESULTS = ["sunny", "rainy", "done", "ok", "12", "7:30", "not found", "42", "cold", "ready", "15:05", "3 found", "saved", "sent", "100", "snow", "closed", "open"]
