"""The plots of the stories: beats with choices, a line that sums each up, and the word that this line must have.

Kinds: `both` has two who act, `thing` one who acts and an object, `things` two objects and a child.
"""

OPEN_BOTH = [
    "[Once upon a time,|Long ago,|One day,] {intro_x} lived {place}. [Not far away lived {intro_y}.|{His} best friend was {intro_y}.|{His} neighbour was {intro_y}.]",
    "[There once was|Once there was] {intro_x} who lived {place}. [Every day {he} met {intro_y}.|Next door lived {intro_y}.]",
    "{Intro_x} and {intro_y} lived {place}. [They were good friends.|They saw each other every day.|They did not know each other well.]",
]
OPEN_THING = [
    "[Once upon a time,|Long ago,|One day,] {intro_x} lived {place}.",
    "[There once was|Once there was] {intro_x} who lived {place}.",
    "{Place}, there lived {intro_x}. [Everyone knew {him}.|{He} was often alone.]",
]
OPEN_THINGS = [
    "[Once upon a time,|One day,] [a girl|a child] named {n} lived {place}.",
    "{n} was [a curious girl|a little girl] who lived {place}.",
]

PLOTS = [
    {
        "name": "lost", "kind": "both", "key": "lost",
        "beats": [
            "One {time}, {x} could not find {his} {prop}. {He} [looked everywhere|looked in every corner], but it was gone.",
            "[\"I will help you look,\" said {y}.|\"Let us look for it together,\" said {y}.] [They searched all day|They searched until the evening], and they did not give up.",
            "[At last|Then], {y} saw something {spot}. It was the {prop}!",
            "[\"Thank you,\" said {x}.|{X} was so happy that {he} jumped.] [Then they ate {food} together|Then they shared {food}] and laughed about the long day.",
        ],
        "end": "[From then on, they always helped each other.|That night, both of them slept well.|A good friend is the best thing to find.]",
        "sum": "{Ax} and {ay} look for a lost {prop} and find it {spot}.",
    },
    {
        "name": "race", "kind": "both", "key": "race",
        "beats": [
            "One {time}, {y} said, \"[Let us have a race|I want to race you] to {landmark}!\" {X} [agreed at once|smiled and said yes].",
            "They ran as fast as they could. [The wind was strong and the road was long.|The road was long and full of stones.]",
            "[Suddenly|Near the end], {x} [fell and hurt {his} side|slipped and fell down]. {Y} could have won, but {y} stopped and went back.",
            "\"[Winning is not important|You are more important than a race],\" said {y}. [Slowly, they walked on side by side.|They went on together, step by step.]",
        ],
        "end": "They reached {landmark} at the same time, and [both of them had won.|nobody had lost.]",
        "sum": "{Ax} and {ay} race to {landmark} and finish together.",
    },
    {
        "name": "storm", "kind": "both", "key": "storm",
        "beats": [
            "One {time}, a great storm came. [The wind howled, and the rain fell for hours.|The sky turned black, and the rain fell hard.]",
            "The roof of {his} home [broke|began to leak], and everything got wet. {X} [shook with cold|did not know where to go].",
            "[Then {y} came through the rain.|{Y} heard {him} and opened the door.] \"[Come in|Stay with me],\" said {y}. \"[There is room for two.|You can sleep here tonight.]\"",
            "They ate {food} and told stories until the storm was over. In the morning, they [repaired|mended] the roof together.",
        ],
        "end": "[After that, no storm could frighten them.|Since that night, they have been the best of friends.]",
        "sum": "{Ax} is caught in a storm, and {ay} gives {him} shelter.",
    },
    {
        "name": "gift", "kind": "both", "key": "birthday",
        "beats": [
            "It was the birthday of {y}, and {x} had no gift. [{He} had no money either.|All the shops were closed.]",
            "{X} thought [for a long time|all morning]. [\"I can make something myself,\" {he} said at last.|Then {he} had an idea.]",
            "{He} worked [all day|very hard] and made {craft}. [It was not perfect, but it was made with care.|It was small, but it was beautiful.]",
            "When {y} saw it, {he2} [smiled from ear to ear|could not stop smiling]. \"[This is the best gift of all|Nobody ever made me something so nice],\" said {y}.",
        ],
        "end": "They ate {food} and [danced until late at night.|had a wonderful day.]",
        "sum": "{Ax} makes {craft} for the birthday of {ay}.",
    },
    {
        "name": "learn", "kind": "both", "key": "teaches",
        "beats": [
            "{X} wanted to {skill}, but {he} did not know how. [Everyone else could do it.|{He} had tried many times.]",
            "[\"I can teach you,\" said {y}.|One {time}, {y} offered to help.] [They met every morning and practised.|They practised day after day.]",
            "The first try went wrong, and the second try went wrong too. [\"I will never learn it,\" said {x}.|{X} wanted to give up.] \"[Try once more|Do not give up],\" said {y}.",
            "[The third time|Then], it worked! {X} could {skill}, and {y} [clapped and cheered|was very proud of {him}].",
        ],
        "end": "[Now they do it together every day.|Nothing is too hard with a patient friend.]",
        "sum": "{Ay} teaches {ax} to {skill}.",
    },
    {
        "name": "share", "kind": "both", "key": "shares",
        "beats": [
            "One {time}, {x} had a big bowl of {food}. [It smelled wonderful.|{He} was just about to eat.]",
            "Then {y} came by. {He2} [had not eaten all day|was very hungry], but {he2} was too shy to ask.",
            "{X} looked at the bowl and thought for a moment. \"[Sit down with me|There is enough for two],\" {he} said, and gave {him2} half of it.",
            "The next day, {x} had nothing to eat. [There was a knock at the door.|Someone called from outside.] It was {y} with plenty of good things.",
        ],
        "end": "[What we give comes back to us.|So they ate together again, and both were full and happy.]",
        "sum": "{Ax} shares {his} {food} with {ay}, who later helps in return.",
    },
    {
        "name": "build", "kind": "both", "key": "build",
        "beats": [
            "One {time}, {x} and {y} decided to build a {structure}. [{X} had a plan, and {y} had strong arms.|They had a lot of wood and a good plan.]",
            "They worked [all morning|for three days]. But [in the night|soon] it fell down with a crash.",
            "[\"It is your fault,\" said {x}.|At first they were angry.] Then {y} began to laugh, and {x} laughed too. \"[Let us try again|This time we will do it slowly],\" said {y}.",
            "They tried again and checked every part. [This time it stood firm.|Now it was strong and straight.]",
        ],
        "end": "[They sat down in front of their {structure} and ate {food}.|Everyone came to see the {structure}, and the two were proud.]",
        "sum": "{Ax} and {ay} build a {structure} and do not give up when it falls.",
    },
    {
        "name": "noise", "kind": "both", "key": "noise",
        "beats": [
            "One night, {x} heard {noise}. [{He} could not sleep.|{He} hid under the covers.] \"[What can that be|Who is there]?\" {he} whispered.",
            "{X} ran to {y} and told {him2} about the noise. \"[Let us go and see|We will find out together],\" said {y}.",
            "They walked slowly through the dark. [Their hearts beat fast.|Nobody said a word.] The noise came closer and closer.",
            "Then they saw what it was. [It was only {source}!|It was nothing but {source}!] They [laughed until they cried|both began to laugh].",
        ],
        "end": "[After that, {x} was not afraid of the dark anymore.|Fear is small when you share it.]",
        "sum": "{Ax} hears a strange noise at night, and {ay} helps {him} find out what it is.",
    },
    {
        "name": "sorry", "kind": "both", "key": "sorry",
        "beats": [
            "{Y} had a {prop} that {he2} loved very much. One {time}, {x} [played with it and broke it|dropped it, and it broke].",
            "{X} was afraid and [hid it {spot}|told nobody]. [But {he} could not sleep that night.|But {he} felt worse and worse.]",
            "In the morning, {he} went to {y}. \"I am sorry,\" said {x}. \"[I broke your {prop}.|It was my fault.]\"",
            "{Y} was sad, but [only for a moment|not angry]. \"[Thank you for telling me the truth|We can mend it together],\" said {y}. And together they made it as good as new.",
        ],
        "end": "[The truth is sometimes hard, but it makes us free.|From that day on, they trusted each other even more.]",
        "sum": "{Ax} breaks the {prop} of {ay}, says sorry and helps to mend it.",
    },
    {
        "name": "journey", "kind": "both", "key": "journey",
        "beats": [
            "{X} had always wanted to see {sight}. [\"Come with me,\" {he} said to {y}.|\"Will you come with me?\" {he} asked {y}.] So they packed {food} and set off.",
            "The way was long. [First they climbed a steep hill.|First they walked through a thick fog.] {X} was tired, and {y} carried {his} things.",
            "Then they came to a wide stream. {Y} was afraid of the water, so {x} [went first and held out a stick|showed {him2} the safe stones].",
            "On the third day they reached {landmark}, and there it was: {sight}. [It was more beautiful than any dream.|They sat down and could not speak.]",
        ],
        "end": "[The best part of the journey was going together.|They still talk about that journey today.]",
        "sum": "{Ax} and {ay} go on a journey to see {sight}.",
    },
    {
        "name": "find", "kind": "thing", "key": "finds",
        "beats": [
            "One {time}, {x} found {intro_y} {spot}. [\"Whose can this be?\" {he} wondered.|\"Somebody must miss this,\" {he} thought.]",
            "{He} asked everyone [in the neighbourhood|on the road], but nobody knew. [Some said, \"Just keep it.\"|Many people shook their heads.]",
            "Then {x} met a child who was crying. [\"I lost my {ny},\" said the child.|\"My {ny} is gone,\" said the child.] {X} held out {y}, and the child smiled at once.",
            "\"You are so honest,\" said the child. [To say thank you, the child gave {him} {food}.|They became friends and ate {food} together.]",
        ],
        "end": "[{X} went home with a light heart.|Giving something back can be the nicest gift.]",
        "sum": "{Ax} finds {ay} {spot} and gives it back to a child.",
    },
    {
        "name": "missing", "kind": "thing", "key": "loses",
        "beats": [
            "{X} had {intro_y}. [{He} took it everywhere.|It was {his} greatest joy.]",
            "One {time}, {y} was gone! {X} [looked left and right|turned everything upside down], but there was no {ny}.",
            "{He} walked back the whole way, step by step. [The sun went down, and it grew dark.|It took a long time.]",
            "Then something caught {his} eye. There, {spot}, was {y}! [{X} hugged it and danced.|{X} laughed out loud with joy.]",
        ],
        "end": "[Since then, {x} has taken better care of it.|That evening, {x} ate {food} and smiled all the time.]",
        "sum": "{Ax} loses {ay} and finds it {spot}.",
    },
    {
        "name": "wish", "kind": "thing", "key": "wants",
        "beats": [
            "{X} had only one wish: {he} wanted {intro_y}. [{He} dreamed of it every night.|{He} thought of it all day long.]",
            "But {he} had no money. So {he} [helped in the fields|carried water for the neighbours] and saved every penny.",
            "After many weeks, {he} had enough. On the way to buy it, {he} met an old woman who was cold and hungry. {X} [thought for a moment|took a deep breath] and gave her all the money.",
            "The next morning, something stood in front of the door. It was {ay}! [The old woman had left it there.|A note said: for a kind heart.]",
        ],
        "end": "[{X} had never been so happy.|A kind heart gets its wish in the end.]",
        "sum": "{Ax} wants {ay} and gets it by being kind.",
    },
    {
        "name": "magic", "kind": "thing", "key": "magic",
        "beats": [
            "One {time}, {x} found {intro_y} {spot}. [It began to glow.|Suddenly, it spoke.] \"I am magic,\" said {y}. \"You have one wish.\"",
            "{X} [thought and thought|did not know what to say]. {He} could wish for gold, or for {food} every day.",
            "But then {he} looked around. [The fields were dry, and everyone was thirsty.|It had not rained for weeks, and the grass was brown.] \"I wish for rain,\" said {x}.",
            "[At once, soft rain began to fall.|A moment later, the first drops fell.] Everyone came outside and danced, and {y} [shone one last time|was quiet from then on].",
        ],
        "end": "[{X} kept it forever.|It was the best wish in the world.]",
        "sum": "{Ax} finds a magic {ny} and wishes for rain.",
    },
    {
        "name": "lend", "kind": "thing", "key": "lend",
        "beats": [
            "{X} had {intro_y}. It was the only one far and wide, and {he} [kept it under lock and cover|never let anyone touch it].",
            "One {time}, a neighbour asked, \"May I borrow your {ny}?\" \"No,\" said {x}. \"It is mine!\" [The neighbour went away sadly.|The neighbour looked sad and left.]",
            "Soon nobody came to visit. [{X} sat alone with {y}, and it was no fun at all.|{X} looked at {y} and felt lonely.]",
            "So {he} went outside and called, \"Who wants to use my {ny}?\" [Everyone came running.|All the neighbours came.] They took turns and ate {food}.",
        ],
        "end": "[Things are more fun when we share them.|{X} was never lonely again.]",
        "sum": "{Ax} learns to lend {his} {ny} to others.",
    },
    {
        "name": "deep", "kind": "thing", "key": "pond",
        "beats": [
            "One {time}, {x} walked along a pond with {intro_y}. [{He} did not look where {he} was going.|{He} was singing and not looking.] Splash! {Y} fell into the water.",
            "{X} tried to reach it with {his} hand, but the pond was too deep. [Then {he} tried with a stick, but the stick was too short.|{He} almost fell in as well.]",
            "{He} sat down and thought. [\"If I cannot go in, the water must go out,\" {he} said.|Then {he} had a clever idea.] {He} dug a little channel, and the water ran away into the grass.",
            "Soon {y} lay there on the mud, wet but whole. [{X} cleaned it and carried it home.|{X} dried it in the sun.]",
        ],
        "end": "[A calm mind is stronger than a long arm.|And the grass was greener than ever.]",
        "sum": "{Ax} drops {ay} into a pond and gets it out with a clever idea.",
    },
    {
        "name": "contest", "kind": "thing", "key": "contest",
        "beats": [
            "Every year there was a contest: who had the finest {ny}? This year, {x} wanted to win with {intro_y}.",
            "{He} [worked on it day and night|cleaned it until it shone]. \"[Nobody has a better one|This must be the best],\" {he} said.",
            "On the day of the contest, {he} saw a small child with a broken {ny}. The child was crying. {X} [stopped and helped to mend it|sat down and repaired it], and so {he} came too late.",
            "The contest was over. But [the judges had seen everything|everyone had watched {him}]. They gave {x} a special prize for the biggest heart.",
        ],
        "end": "[{X} was prouder than any winner.|Then they all ate {food} and sang.]",
        "sum": "{Ax} misses a contest with {ay} because {he} helps a child, and wins a special prize.",
    },
    {
        "name": "trip", "kind": "things", "key": "trip",
        "beats": [
            "One {time}, {n} went on a trip. She packed only two things: {intro_x} and {intro_y}. [\"You will not need them,\" said her father.|Her father laughed about it.]",
            "After an hour, the path was blocked. [{n} had an idea and used {x} to get across.|But with {x}, she soon found a way.]",
            "Then it grew dark, and she lost the way. [Now {y} helped her: it showed her where to go.|She took out {y}, and it was just what she needed.]",
            "In the evening, she reached {landmark} and ate {food}. [\"You two are the best helpers,\" she said.|She held {x} in one hand and {y} in the other.]",
        ],
        "end": "[Small things can be a great help.|At home, she told her father everything, and he was amazed.]",
        "sum": "{n} goes on a trip with {ax} and {ay}, and both help her.",
    },
    {
        "name": "attic", "kind": "things", "key": "grandfather",
        "beats": [
            "One {time}, {n} climbed up to the attic. [There was dust everywhere.|It was quiet and full of dust.] In a corner she found {intro_x} and {intro_y}.",
            "She carried {x} and {y} down to her grandfather. [His eyes grew wide.|He smiled when he saw them.] \"I had these when I was a child,\" he said.",
            "Then he told her about the old days. [{X} had been a gift from his mother.|He had won {x} at a fair.] And with {y}, he had played every summer.",
            "{n} listened until it was late. [\"Now they belong to you,\" said her grandfather.|\"Take good care of them,\" he said.]",
        ],
        "end": "[She put them next to her bed and dreamed of long ago.|Every old thing has a story to tell.]",
        "sum": "{n} finds {ax} and {ay} in the attic, and her grandfather tells her about them.",
    },
    {
        "name": "shop", "kind": "things", "key": "shop",
        "beats": [
            "On a shelf in a shop stood {intro_x} and {intro_y}. [Every night, when the shop was closed, they talked.|At night, when nobody listened, they talked.]",
            "\"I want to see the world,\" said {x}. \"[So do I|Me too],\" said {y}. \"But [nobody ever buys us|people only walk past].\"",
            "One {time}, {n} stopped in front of the shop. She counted her coppers again and again. She had enough for one, but not for both.",
            "\"I cannot part them,\" {n} said. [The shopkeeper smiled and gave her both.|So the shopkeeper let her have both for the price of one.]",
        ],
        "end": "[Now {x} and {y} see something new every day.|And that night, they talked in their new home.]",
        "sum": "{Ax} and {ay} stand in a shop together until {n} takes both home.",
    },
    {
        "name": "friend", "kind": "things", "key": "friend",
        "beats": [
            "{n} owned {intro_x} and {intro_y}. [She loved both of them.|She played with them every day.]",
            "One {time}, a new child moved in next door. The child had no toys and [sat alone on the steps|looked very sad].",
            "{n} thought about it all night. [Should she give away {x} or {y}?|Which one could she give away?] In the morning, she took {y} and went next door. \"This is for you,\" she said.",
            "The child beamed. [Soon they played together, one with {x} and one with {y}.|From then on they met every day, with {x} and with {y}.]",
        ],
        "end": "[{n} had one thing less, but one friend more.|A friend is worth more than any toy.]",
        "sum": "{n} has {ax} and {ay}, gives one away and finds a friend.",
    },
]

KINDS = {kind: [p for p in PLOTS if p["kind"] == kind] for kind in ("both", "thing", "things")}
OPENINGS = {"both": OPEN_BOTH, "thing": OPEN_THING, "things": OPEN_THINGS}
TIMES = ["morning", "afternoon", "evening", "summer day", "winter day", "spring morning", "cold night", "sunny day"]
