"""How people ask for each task: `CORES` in `FRAMES`, and `WHOLE` phrasings, for training; `HELD_OUT` for tests alone.

A core is a piece of a request: something to `do`, an indirect question (`know`), a direct one (`ask`), or a `noun`.
No phrasing of the tests can come out of the frames; `prompts` sees to that, and the checker looks again.
"""

from asking import BASICS

FRAMES = {
    "do": [
        "<C>.", "<C>.", "Please <c>.", "[Can|Could|Would|Will] you [please |]<c>?", "I [want|need|would like|ask] you to <c>.", "Now <c>.",
        "[Next|First|Then|Today|OK|Well|So|Right|Again], <c>.", "[Go ahead and|Quickly|Kindly|Just|Simply|You please] <c>.", "Try to <c>.",
        "[Your task|My question|My wish|The task|My idea|Your job] is to <c>.", "[Task|Exercise|Job|To do|Wish|Request]: <c>.", "You [should|must|may|can] <c>.",
        "[Is it possible|Are you able] to <c>?", "[I can't|I cannot|I don't know how to] <c>. [Can you|Could you do it|Please do it|Help me]?",
        "Help [me|us] to <c>.", "Let us <c>.", "Do you know how to <c>?", "Just <c>[ for me| for us|].", "<C>, [please|would you|will you|if you can].",
        "[Be so kind and|Be nice and|Come on,] <c>.", "It would be [nice|great|good|kind] if you could <c>.",
        "[My|Our] [teacher|son|daughter|friend|sister|class] [wants|asks|needs] you to <c>.", "[We|They] [want|need] you to <c>.", "[The children|My children|The kids] want you to <c>.",
        "[Would you mind|How about] this: <c>.", "This time, <c>.", "Do this for [me|us|them|him|her]: <c>.", "<C> [for me|for us|now|today|once|again].",
    ],
    "know": [
        "Tell [me|us|him|her] <c>.", "Do you know <c>?", "Can you [tell me|say|find out|see] <c>?", "I [wonder|want to know|would like to know|need to know|forgot|don't know] <c>.",
        "[Say|Find out|Work out|Figure out|Check|See|Guess] <c>.", "Please [tell me|say|check|find out] <c>.", "[Let me know|Show me] <c>.",
        "[My question is|The question is|I ask|What I need is] <c>.", "I am not sure <c>.", "Could you [please |]tell [my son|us|me|the class] <c>?", "I want you to [say|tell me|find out] <c>.",
    ],
    "ask": [
        "<C>?", "<C>?", "[So|Now|And|Well|OK|Then], <c>?", "[Tell me|Say|Quick question|Question|Here is a question|Think|Please tell me|My question|I wonder]: <c>?", "<C>, [please|do you know|can you say]?",
    ],
    "noun": [
        "What is <c>?", "[Give|Tell|Show|Send|Write] [me|us] <c>.", "I [need|want|would like|am looking for|ask for] <c>.", "[Find|Say|Name|Write|Print|Type|Look for] <c>.", "<C>, please.", "<C>?",
        "Can you [give|tell|show] me <c>?", "Do you [know|have] <c>?", "Let me [see|hear|have|know] <c>.", "Please [write|say|give me|tell me] <c>.", "[We|They] want <c>.", "[Now|Next|Then] <c>.",
        "[Here|Today] I [want|need] <c>.", "Is there <c>?",
    ],
}

STORY_OBJECT = "a [story|short story|little story|tale|new story|bedtime story|very short story|nice tale|fairy tale|few lines|short tale]"

CORES = {
    "story": {
        "do": [
            "[tell|write|give|make] [me|us|them] " + STORY_OBJECT + " [about|with|on|of] {ax} and {ay}", "[write|make up|invent|think of|compose|create|find|come up with] " + STORY_OBJECT + " [about|with|on|of|featuring] {ax} and {ay}",
            "[tell|write|invent] " + STORY_OBJECT + " [that has|that is about|that tells of|in which you have|in which there is|starring] {ax} and {ay}", "tell [me|us|them] about {ax} and {ay} in a story",
            "[make|write|tell] a story [out of|from|using|in which we meet] {ax} and {ay}", "[let|have] {ax} meet {ay} in a story", "put {ax} and {ay} into " + STORY_OBJECT,
            "tell a story where {ax} and {ay} [meet|play|work together|become friends]", "write down what happens to {ax} and {ay}, as a story",
        ],
        "noun": [
            STORY_OBJECT + " [about|with|on|of|featuring|for my children about|for bedtime about|for them with] {ax} and {ay}", "the [story|tale] of {ax} and {ay}", "one of your [stories|tales|best stories] [about|with] {ax} and {ay}",
            STORY_OBJECT + " that [has|is about|tells of|starts with] {ax} and {ay}", "[something|one more story|another story|one more tale] [about|with] {ax} and {ay}",
        ],
        "know": ["[what happens|what happened] to {ax} and {ay} in your story", "a story about {ax} and {ay}"],
        "ask": ["do you know [a story|a tale] [about|with] {ax} and {ay}", "have you [got |heard ]a story [about|with] {ax} and {ay}", "is there a story about {ax} and {ay}", "what is the story of {ax} and {ay}"],
    },
    "continue": {
        "do": ["[continue|go on with|finish|complete|end] [this story|the story|this tale|the tale|it|my story]: {text}", "write [the rest|the end|the next part|the last part|some more|what comes next] of [this|the|my] [story|tale|text]: {text}",
               "[read|take] [this|this story|these lines] and [go on|continue|finish it|write on|tell the rest|tell me the end]: {text}", "tell [me|us] [what comes next|the rest of this story|how this ends|how it goes on]: {text}", "add [more|an end|the rest] to [this|my] story: {text}"],
        "know": ["[how the story goes on|how this story ends|what happens next|what comes next|how it ends]: {text}"],
        "ask": ["[how does this story go on|what happens next|how does it end|what comes after this|how could this go on]? {text}"],
        "noun": ["the [rest|end|next part] of this [story|tale]: {text}"],
    },
    "summary": {
        "do": ["[summarise|summarize|sum up|shorten|condense] [this|this story|the story|this text|the text|the following|my story] in one [line|sentence]: {text}", "write [one line|one sentence|a single line|a line] [about what happens in this story|that tells what happens|about this story|for this text]: {text}",
               "[read|take] this [story|text] and [sum it up|summarise it|say what happens|tell me what it is about] in one [line|sentence]: {text}", "tell [me|us] in one [line|sentence] what [this story is about|happens here|this says]: {text}", "make [one line|one sentence] of this [story|text]: {text}",
               "give [a|me a] [summary|short summary|one-line summary|summary of one line] [of|for] [this|this story|the text]: {text}"],
        "noun": ["[a|the|your] [summary|one-line summary|short version|summary in one sentence] of this [story|text]: {text}", "one [line|sentence] about this [story|text]: {text}"],
        "know": ["what [this story is about|happens in this story|happens here], in one [line|sentence]: {text}"],
        "ask": ["what [is this story about|happens in this story|is the text about], in one [line|sentence]? {text}"],
    },
    "letters": {
        "do": ["count [the letters|all letters|every letter|each letter] [in|of] [the word |]{q}", "[say|find|tell me|write] [the number of letters|how many letters there are] in [the word |]{q}", "look at [the word |]{q} and count [the letters|each letter|all letters|it letter by letter]",
               "read [the word |]{q} and [say|tell me] how many letters it has", "[count|tell me] how many letters [{q} has|are in {q}|make up {q}|you need for {q}]", "count {q}, letter by letter", "measure the length of [the word |]{q}", "take {q} and [tell me|say|find] its length"],
        "know": ["how many letters [the word |]{q} has", "how many letters [there are|you see|you find] in [the word |]{q}", "how long [the word |]{q} is", "the number of letters [in|of] {q}", "the length of [the word |]{q}", "what the length of {q} is"],
        "ask": ["how many letters [are in|are there in|do you see in|do you count in] [the word |]{q}", "how many letters does [the word |]{q} [have|contain|need]", "how long is [the word |]{q}", "what is the [length|number of letters|letter count] of [the word |]{q}", "{q} has how many letters"],
        "noun": ["the [number|count] of letters [in|of] [the word |]{q}", "the [length|letter count] of [the word |]{q}"],
    },
    "letter": {
        "do": ["count [the letter |the letters |each |every |all ]{l} in [the word |]{q}", "count how [often|many times] [the letter |]{l} [is|occurs|appears|comes] in [the word |]{q}", "look at [the word |]{q} and count [the letter |]{l}", "[find|count] [all|every|each] {l} in [the word |]{q}",
               "[say|find] how many {l}'s there are in [the word |]{q}", "take {q} and count [the letter |the ]{l}", "read {q} and tell me how often it has [the letter |an |a ]{l}"],
        "know": ["how [often|many times] [the letter |]{l} [is|occurs|appears|comes] in [the word |]{q}", "how many {l}'s [the word |]{q} has", "how [often|many times] you [see|find|read] [the letter |]{l} in [the word |]{q}", "how many {l}'s are in [the word |]{q}"],
        "ask": ["how [often|many times] [does|do you see|do you find] [the letter |]{l} [occur |appear |]in [the word |]{q}", "how many {l}'s [are in|are there in|do you find in|do you see in] [the word |]{q}", "how many {l}'s does {q} have", "in {q}, how often is [the letter |]{l}"],
        "noun": ["the [number|count] of {l}'s in [the word |]{q}", "the number of times [the letter |]{l} is in {q}"],
    },
    "words": {
        "do": ["count [the words|all words|every word|each word] [in|of] [this|this sentence|this text|my sentence|the text|the sentence]: {text}", "[say|find|tell me] [the number of words|how many words there are] in [this|this sentence|this text|it]: {text}", "read [this|this sentence|the text] and count the words: {text}", "take this sentence and count its words: {text}"],
        "know": ["how many words [this|this sentence|this text|it|my sentence] has: {text}", "the number of words in [this|this text]: {text}", "how many words there are in [this|my] [text|sentence]: {text}"],
        "ask": ["how many words [are in|are there in|do you see in|does it have,|do you count in] [this|this sentence|this text]: {text}", "what is the [word count|number of words] of this: {text}"],
        "noun": ["the [number|count] of words in [this|this sentence|this text|the text]: {text}", "the word count of this: {text}"],
    },
    "items": {
        "do": ["count [the things|the items|all items|every item|my things] [in|of|on] [this list|my list|the list|this]: {text}", "[say|find|tell me] how many [things|items] [there are|are in this list|I have|I named|are here]: {text}", "read [this list|my list] and count [the items|the things|how many there are]: {text}", "count [this list|what I have|what I named]: {text}"],
        "know": ["how many [things|items] [these are|there are|I have|the list has|are in my list|I named]: {text}"],
        "ask": ["how many [things|items|entries] [are these|do I have|are in this list|are on my list|did I name|are there]: {text}"],
        "noun": ["the number of [items|things] in [this|my] list: {text}", "the [length|count] of this list: {text}"],
    },
    "spell": {
        "do": ["spell [the word |]{q}", "spell [out |out the word |][the word |]{q}[ letter by letter| slowly| correctly| aloud|]", "[say|write|give me|tell me|list|name|show me] the letters of [the word |]{q}[, one by one|]", "[write|say|read] [the word |]{q} letter by letter", "[say|show|explain|write] how [you spell |to spell |one spells ][the word |]{q}",
               "take {q} and spell it", "look at [the word |]{q} and spell it"],
        "know": ["how [to spell|you spell|I spell|we spell|they spell] [the word |]{q}", "the letters of [the word |]{q}", "the [right |correct |]spelling of [the word |]{q}", "which letters [are in|you need for] [the word |]{q}, one by one", "how [the word |]{q} is spelt"],
        "ask": ["how do [you|I|we|they] spell [the word |]{q}", "how [is|would you say is] [the word |]{q} spelt", "what is the [right |correct |]spelling of [the word |]{q}", "what are the letters of [the word |]{q}", "which are the letters of {q}"],
        "noun": ["the [right |correct |]spelling of [the word |]{q}", "the letters of [the word |]{q}, one by one", "{q}, spelled [out|letter by letter]", "the word {q}, letter by letter"],
    },
    "spell_two": {
        "do": ["spell [the words |both words, |two words, |these words: |them both: |each of these: |]{q} and {r}", "spell [out |first |]{q} and [then |after that |next |also |]{r}", "[say|write|give me|tell me] the letters of {q} and [of |]{r}", "[write|say] {q} and {r} letter by letter", "take {q} and {r} and spell [them|each|both of them]",
               "[say|show] how to spell {q} and [also |then |how to spell |]{r}", "spell {q}, and spell {r}[ too| as well|]"],
        "know": ["how [to spell|you spell|we spell] {q} and {r}", "the spelling of {q} and [of |also of |]{r}", "how {q} and {r} are [spelt|written]"],
        "ask": ["how do [you|I|we] spell {q} and {r}", "how do you spell {q}, and how {r}", "what is the spelling of {q} and [of |]{r}", "how are {q} and {r} spelt"],
        "noun": ["the spelling of {q} and [of |]{r}", "the letters of {q} and [of |]{r}", "two words, spelled out: {q} and {r}"],
    },
    "reverse": {
        "do": ["[reverse|turn around|flip|invert] [the word |the letters of |]{q}", "[write|say|spell|read|print|type] [the word |]{q} [backwards|backward|in reverse|in reverse order|the other way round|from back to front|from right to left|from its last letter to its first|from the last letter on|from end to beginning|starting at the end|with the last letter first]",
               "take [the word |]{q} and [reverse|flip|turn around] it", "take [the word |]{q} and [read|write|say] it [backwards|in reverse|from back to front|from the last letter|starting with the end]", "put the letters of {q} in reverse order", "[make|show me|give me] {q} [backwards|reversed|in reverse]",
               "look at {q} and [reverse it|write it backwards|turn it around]"],
        "know": ["what [the word |]{q} is [backwards|in reverse|reversed]", "how [you write |to write |one writes ][the word |]{q} [backwards|in reverse]", "how [the word |]{q} [looks|reads|sounds] [backwards|in reverse|from back to front]"],
        "ask": ["what is [the word |]{q} [backwards|backward|in reverse|reversed|from the end]", "how do you [write|read|spell|say] [the word |]{q} [backwards|in reverse|from back to front]", "how would {q} [be|read|look] [backwards|reversed|in reverse]", "what do you get when you reverse {q}", "what does {q} look like [backwards|in reverse]"],
        "noun": ["the [reverse|reversed form|mirror form] of [the word |]{q}", "the word {q} [backwards|in reverse|reversed]", "{q} [backwards|reversed|in reverse order]"],
    },
    "larger": {
        "do": ["[name|say|find|pick|choose|give me|tell me|write] the [larger|bigger|greater] [number |one |]of {a} and {b}", "[say|tell me|find out] which [number |one |]is [larger|bigger|greater|more], {a} or {b}", "compare {a} [and|with|to] {b} and [say which is larger|name the larger one|find the bigger one]", "look at {a} and {b} and [name|pick|find] the [larger|bigger|greater] [one|number]",
               "take [the numbers |]{a} and {b} and [tell me|find] the [larger|bigger] [one|number]"],
        "know": ["which [number |one |]is [larger|bigger|greater|more], {a} or {b}", "whether {a} or {b} is [larger|bigger|greater]", "which of [the numbers |the two numbers |]{a} and {b} is [larger|bigger|greater]", "what the [larger|bigger] number is, {a} or {b}"],
        "ask": ["which [number |one |of them |]is [larger|bigger|greater|more], {a} or {b}", "is {a} or {b} [larger|bigger|greater|the larger one|the bigger number]", "[between|out of|of] [the numbers |]{a} and {b}, which is [larger|bigger|greater]", "what is [larger|bigger|more], {a} or {b}", "{a} or {b}, which [one |]is [larger|bigger|greater]"],
        "noun": ["the [larger|bigger|greater] [number|one|value] of [the two numbers |]{a} and {b}", "the [larger|bigger] one: {a} or {b}"],
    },
    "smaller": {
        "do": ["[name|say|find|pick|choose|give me|tell me|write] the [smaller|lower|lesser] [number |one |]of {a} and {b}", "[say|tell me|find out] which [number |one |]is [smaller|less|lower], {a} or {b}", "compare {a} [and|with|to] {b} and [say which is smaller|name the smaller one|find the lower one]", "look at {a} and {b} and [name|pick|find] the [smaller|lower] [one|number]",
               "take [the numbers |]{a} and {b} and [tell me|find] the [smaller|lower] [one|number]"],
        "know": ["which [number |one |]is [smaller|less|lower], {a} or {b}", "whether {a} or {b} is [smaller|less|lower]", "which of [the numbers |the two numbers |]{a} and {b} is [smaller|less|lower]", "what the [smaller|lower] number is, {a} or {b}"],
        "ask": ["which [number |one |of them |]is [smaller|less|lower], {a} or {b}", "is {a} or {b} [smaller|less|lower|the smaller one]", "[between|out of|of] [the numbers |]{a} and {b}, which is [smaller|less|lower]", "what is [smaller|less], {a} or {b}", "{a} or {b}, which [one |]is [smaller|less|lower]"],
        "noun": ["the [smaller|lower|lesser] [number|one|value] of [the two numbers |]{a} and {b}", "the [smaller|lower] one: {a} or {b}"],
    },
    "yes_no": {
        "know": ["[whether|if] [the number |]{a} is [larger|bigger|greater|more] than [the number |]{b}", "[whether|if] {a} is [a larger|a bigger|the larger] number than {b}"],
        "ask": ["is [the number |]{a} [larger|bigger|greater|more] than [the number |]{b}", "is {a} [really |]a [larger|bigger|greater] number than {b}", "is it [true|right] that {a} is [larger|bigger|greater] than {b}", "yes or no: is {a} [larger|bigger|greater] than {b}", "would you say {a} is [larger|bigger] than {b}"],
    },
    "yes_no_less": {
        "know": ["[whether|if] [the number |]{a} is [smaller|less|lower] than [the number |]{b}"],
        "ask": ["is [the number |]{a} [smaller|less|lower] than [the number |]{b}", "is {a} [really |]a [smaller|lower] number than {b}", "is it [true|right] that {a} is [smaller|less] than {b}", "yes or no: is {a} [smaller|less] than {b}"],
    },
    "rewrite": {
        "do": [
            "[write|copy|type|print|repeat] [this|this text|the text|the following|it|my text] [again|once more|a second time][, but|, only|] with {new} [instead of|for] {old}: {text}",
            "[change|turn] [the word |every |all of |]{old} [to|into] {new} [in|everywhere in|throughout] [this|this text|the text|my text][ and leave the rest|, nothing else|]: {text}",
            "[replace|exchange|swap] [the word |every |each |]{old} [by|with|for] {new} [in|everywhere in] [this|this text|the text|my text|the following][ and leave the rest|, nothing else|]: {text}",
            "[rewrite|write down|give me] [this|this text|the text|the following] so that [it says {new} instead of {old}|{old} becomes {new}|{old} is {new}]: {text}",
            "[use|put|write] {new} [instead of|in place of] {old} in [this|this text|the text|the following]: {text}",
            "[take|read] [this|this text] and [write it again|repeat it|copy it] with {new} instead of {old}: {text}",
            "[write|put|say] {new} [wherever|each time|every time|whenever] [this text|the text|it] [has|says|mentions|names] {old}: {text}",
            "[copy|repeat|write] [this|the text], [putting|writing|using|saying] {new} [whenever|every time|each time] [it has|it says|there is|you see|you read] {old}: {text}",
            "[keep|leave] [this text|everything|all of this] as it is, [but|except that|only] {old} [must be|should be|turns into|has to be] {new}: {text}",
            "make [one|a single|only one] [change|correction|replacement] in [this|this text|the text]: {old} [is to be|should be|must be|turns into|to] {new}. {text}",
            "let [this text|it|the text] stay the same, with [one exception|one difference|one change]: {new} [takes the place of|stands for|replaces|comes instead of] {old}. {text}",
            "[repeat|return|send back] [this|the text] with [one|a] [difference|change]: {new} [takes the place of|replaces|instead of] {old}: {text}",
            "[find|look for] {old} [in this|in the text] and [put|write] {new} [there|in its place|instead]: {text}",
            "[rename|turn] {old} [to|into] {new} [here|in this]: {text}",
        ],
    },
    "json": {
        "do": ["[give me|write|make|return|create|print|build] [a JSON object|one JSON object|JSON|an object in JSON|some JSON] [with|from|of|that has|containing|that says|for|for this:] {fields}", "[write|put|give|return|say|show] [this|it|the following|my data|these values] [as|in] JSON: {fields}", "[turn|convert|change|make] [this|it|my data|the following|these values] into [JSON|a JSON object]: {fields}",
               "[answer|reply|respond] [as|in|with] JSON: {fields}", "format [this|my data|these values] as [JSON|a JSON object]: {fields}", "take [this|my data|these values] and [make JSON of it|write JSON|make a JSON object]: {fields}", "put {fields} into [JSON|a JSON object|one JSON object]"],
        "noun": ["[JSON|a JSON object|one JSON object|an object in JSON] [with|that has|containing|where you have] {fields}", "[the JSON|the object] for {fields}, in JSON", "this as JSON: {fields}"],
        "know": ["how [this|my data] looks as [JSON|a JSON object]: {fields}"],
        "ask": ["how does this look as JSON: {fields}", "what is the JSON for this: {fields}"],
    },
}

WHOLE = {
    "story": [
        "{Ax} and {ay}: [tell me their story|make a story of that|write a story|what is their story?]", "[Story|Tale|Short story|Bedtime story]: {x} and {y}", "What could happen to {ax} and {ay}? [Tell me a story|Make it a story|Write it down as a tale].",
        "[I like|My son likes|We love|My children love|They like] {ax} and {ay}. [Tell|Write] [me|him|us|them] a [story|tale].", "Here are [two topics|two words|two names|my characters|two ideas]: {x} and {y}. [Make|Write|Tell] a story [of them|with them|about them].",
        "[Write|Tell] a [story|tale]. [It should|It must|It has to] [be about|have|mention|tell of] {ax} and {ay}.", "[Tell|Write] me a [tale|story]. [The characters|The main characters|Its characters|The two friends|My favourites] [are|should be] {ax} and {ay}.",
        "[Today's|Tonight's|This week's] [story|tale] is [about|for] {ax} and {ay}.", "I [saw|met|drew|dreamed of] {ax} and {ay}. [What is their story|Tell me their story|Make it a tale].", "[Its|The] hero is {ax}, and {ay} is there, too. Tell me [the story|that tale].",
        "Who are {ax} and {ay}? Tell me a story[ about them|].", "[Time for|I am ready for] a story about {ax} and {ay}[!|.]", "[We want|The children want|My daughter wants] to hear [a story|something|a tale] about {ax} and {ay}[ before bed| tonight|].", "There once was {ax}, and there was {ay}. [Write the story|Tell me more|Go on with the story].",
        "One story, please, [about|with] {ax} and {ay}[ in it|].", "With {ax} as [the hero|a hero] and {ay} as [the friend|a helper], tell a story.", "Story with {ax} and {ay}[, go|!|, please|.]",
    ],
    "continue": [
        "{text}\n\n[Continue.|Go on.|Finish this story.|What happens next?|Write the rest.|And then?|Tell me how it ends.|Continue this story, please.|Can you finish it?|Write on.]", "{text}\n\n[Please go on with this story.|Now you go on.|What comes next?|How does the story end?]",
        "[Here is|This is|I wrote|I have] [the beginning|the start|the first part|the first half] of a [story|tale]. [Continue it.|Finish it.|Go on.|Write the rest.|You write the end.|How does it go on?] {text}", "[My story begins like this|This is how my story begins|A story begins]: {text} [Go on.|Continue.]",
        "Once I [heard|read] this: {text} [What happens next in the story?|How did it end?]",
    ],
    "summary": [
        "{text}\n\n[Summarise|Summarize|Sum up] [this|that|the story|it] in one [line|sentence].", "{text}\n\n[In one line, what is this about?|What happens here, in one sentence?|Give me one line about it.|Sum it up, please.|What is it about? One sentence.|Short version?]", "TL;DR: {text}", "[Summarise|Summarize|Sum up] this: {text}",
        "In one [line|sentence], what [happens here|is this about]? {text}", "[Here is|This is|I read] a story. [Sum it up in one line.|What is it about, in one sentence?|Give me the summary.] {text}", "One [line|sentence], please, about this story: {text}",
    ],
    "letters": ["{q} is [my word|the word|a long word|a word I know]. [How many letters is that|Count its letters|How many letters has it|How long is it]?", "{q} [consists of|is made of|has got|needs] how many letters?", "[Of|From] how many letters [is|do you make] {q}[ built|]?", "Number of letters in {q}?", "{q}: how many letters?", "Letters in {q}?", "[My word is|I have the word|Here is a word:] {q}. [How many letters does it have|Count its letters|How long is it]?", "The word {q} has how many letters?", "Length of {q}?"],
    "letter": ["{q} is [my word|the word|a word]. [How many of its letters are {l}|How often is {l} in it|How often does it have {l}|Count the {l}'s]?", "[Of|Among|Out of] the letters of {q}, how many are {l}?", "Which share of {q} is {l}? Count [it|the letter].", "How many letters of {q} are [equal to |the letter |]{l}?", "{q} has how many {l}'s?", "How often is a letter of {q} [equal to |the letter |]{l}?", "Number of {l}'s in {q}?", "In the word {q}, how many {l}'s are there?", "[My word is|Here is a word:] {q}. How [often|many times] does it have [the letter |]{l}?", "{q}: how many {l}'s?", "The letter is {l}, the word is {q}. [How often is it there|Count it]."],
    "words": ["{text}\n\nHow many words [is that|was that|are these|does it have]?", "Word count: {text}", "How many words? {text}", "Number of words in: {text}", "{text}\n\nCount the words[, please|].", "[Here is|I have|I wrote] a sentence: {text} [How many words is it|Count its words|How many words does it have]?"],
    "items": ["{text}\n\nHow many [items|things] [are that|are these|is that]?", "[I have|I bought|I saw|I want|We need] {text}. How many [things|items] is that?", "Number of items: {text}", "How long is this list: {text}", "[Here is a list|My list is|The list]: {text}. [How many items|How many things are there|Count them]?", "{text}: how many things?", "{text}\n\nCount these[ things|]."],
    "spell": ["{q}, letter by letter.", "{q} is [my word|the word|a word I hear]. [Spell it|How is it spelled|How do you spell it|Please spell that]?", "[I|We] [want|need|have|try] to [spell|write] {q}. [Spell it for us|How is it spelled|Tell me the letters].", "[My son|My daughter|She|He|Emma] [has to|must|wants to|tries to] spell {q}. [Help|Spell it|How is it spelled]?", "[Is|Are] {q} hard to spell? [Show me|Spell it].", "Spelling of {q}?", "[My word is|The word is|Here is a word:] {q}. [Spell it|How do you spell it|Spell that word for me].", "[Spelling test|Next word|First word]: {q}.", "{q}. [Please spell it|Can you spell it|Spell that]."],
    "spell_two": ["Spell two words: {q} and {r}.", "[My words are|The words are|Two words:] {q} and {r}. [Spell them|Can you spell them|Spell each of them|How do you spell these].", "{q} and {r}, [letter by letter|spelled out].", "{q} and {r} are [my words|two words|the words|hard words]. [Spell them|How are they spelled|Please spell each]?", "[We|They|My children|She|He|I] [write|practise|need|must learn|want to know|have] {q} and {r}. [Spell these|How are they spelled|Help with the letters|Spell each one|Spell them for us]?", "First {q}, then {r}: spell them.", "[My daughter|The class|Our school] [has a test with|must write|learns to write] {q} and {r}. [Spell both words|Spell them|How do you spell them]?", "Spelling of {q} and {r}?", "I have two words: {q} and {r}. [Spell them|Please spell them both|Spell these words]."],
    "reverse": ["{q} backwards[, please|]!", "[My word is|The word is|Here is a word:] {q}. [Reverse it|Write it backwards|What is it in reverse|Turn it around].", "{q} is [my word|the word|a word]. [Reverse it|What is it backwards|Now write it in reverse]?", "[Begin|Start] {q} [at the end|with the last letter|at its end] and [go|write|read|spell] [to the start|backwards|to its first letter|on from there].", "[Begin|Start] with the last letter of {q} and [write|go] backwards.", "From [the end|its end|the last letter] to the [front|beginning], how is {q} written?", "Mirror {q}.", "Backwards: {q}", "Reverse of {q}?", "{q}. [Now backwards|And in reverse|Read it from back to front]?"],
    "larger": ["{a} or {b}: which is [larger|bigger]?", "{a} vs {b}[, which is larger?|: the bigger one?]", "Compare {a} and {b}.", "[My numbers are|I have the numbers|I have two numbers:|Two numbers:] {a} and {b}. [Which is larger|Which one is bigger|Name the larger|Find the greater one|What is the bigger number]?", "[If|When] you have {a} and {b}, which is [larger|bigger]?", "[He|She|Tom|Anna] has {a}, [he|she|Ben|Lucy] has {b}. Which number is [larger|bigger]?", "Larger: {a} or {b}?", "[There are|Look at] two numbers: {a} and {b}. [Which is greater|Tell me the larger|Pick the larger one]."],
    "smaller": ["{a} or {b}: which is [smaller|less]?", "[My numbers are|I have the numbers|I have two numbers:|Two numbers:] {a} and {b}. [Which is smaller|Which one is less|Name the smaller|Find the lower one|What is the smaller number]?", "[If|When] you have {a} and {b}, which is [smaller|less]?", "[He|She|Tom|Anna] has {a}, [he|she|Ben|Lucy] has {b}. Which number is smaller?", "Smaller: {a} or {b}?", "[There are|Look at] two numbers: {a} and {b}. [Which is less|Tell me the smaller|Pick the smaller one]."],
    "yes_no": ["[True or false|Right or wrong|Yes or no]: {a} is [larger|bigger|greater] than {b}?", "{a} is [larger|bigger|greater] than {b}, [right|true|yes or no|is it not]?", "[He|She|My friend|Anna] [thinks|says|tells me] {a} is [larger|bigger] than {b}. [Right|Is it right|Is that so|Yes or no|Is it]?", "{a} is the [larger|bigger] number, {b} the other. [True|Right]?", "Is {a} > {b}?", "{a} > {b}?"],
    "yes_no_less": ["[True or false|Yes or no]: {a} is [smaller|less] than {b}?", "{a} is [smaller|less] than {b}, [right|true|yes or no]?", "Is {a} < {b}?", "{a} < {b}?"],
    "json": ["[My friend|She|The form|He] [gives|has|wants|says] {fields}. [Make|Write|Return|Give me] [JSON|a JSON object].", "[We|I] [keep|store|save|need|have] [this|these values|the data] [as|in] [JSON|a JSON object]: {fields}[.|]", "[Data|Values|Fields|Input]: {fields}. [JSON, please.|Output JSON.|Give JSON.]", "As JSON: {fields}.", "JSON: {fields}.", "{fields}. [Make that JSON|As JSON, please|Write it as JSON|Now as a JSON object].", "[My data is|The data is|I have|These are my values:] {fields}. [Make a JSON object|Turn it into JSON|I need it as JSON|Write JSON]."],
    "rewrite": [
        "{text}\n\n[Write|Copy|Type|Repeat] [that|this|it|the text] [again|once more] with {new} [instead of|for] {old}.", "{text}\n\n[Replace|Exchange|Swap] {old} [by|with|for] {new}[, please|].", "{text}\n\n[Change|Turn] {old} [to|into] {new}[, nothing else|].",
        "{text}\n\n[The same|That|All of it|This text] [again|once more], but [with {new} instead of {old}|say {new} instead of {old}|{old} should be {new}].", "{text}\n\n[Make|Let] {old} [be |]{new} [and write it again|in this text].",
        "{old} should be {new} in this text. [Write|Correct|Fix|Repeat] it: {text}", "[There is a mistake|One thing is wrong] [here|in this text|in it]: {old} should be {new}. [Write it again|Correct it|Fix it]: {text}", "[Here is|This is|I have|I wrote] a text. [Write it again|Repeat it|Copy it] with {new} instead of {old}. {text}",
        "{text}\n\n[Now|Again|Once more|This text again|The same again|Write that], [with|but with|but] [one|this|a] [change|difference|correction]: {old} [turns into|should be|must be|is to be|has to be] {new}.",
        "{text}\n\n[One change|One correction|One difference|A change|My correction]: {old} [becomes|is|turns into|should be|must be|->] {new}[, please|].", "{text}\n\n[Copy|Repeat|Write] [it|this], [and|but] {old} [becomes|is now|turns into|must be] {new}.",
        "{text}\n\n[Put|Write|Say] {new} [wherever|every time|each time] [it says|there is|you see] {old}.", "{text}\n\n[From now on|Now|Suddenly], {old} is {new}. [Write the text again|How does the text read now|Give me the new text|Write it that way].", "{text}\n\nIn this text, {new} [replaces|takes the place of] {old}.",
        "[I would like|I need|We want|Give me|Show me] [this|the text] [again|as it is], [but|except that|and] {old} [is|should be|must be|becomes] {new}: {text}", "[I need|I want|I have] a [change|correction] in [this|my] text: {old} [becomes|is now|turns into|must be] {new}. {text}", "From now on {old} is [called|named] {new}. [Write|Correct] [the text|this]: {text}",
        "[What does this say|How does this go|How does this read] [if|when] {old} [is|becomes|turns into] {new}? {text}", "{new} [takes the place of|replaces|comes in for] {old} [here|in this text]: {text}", "[All|Every] {old} [must become|should be|turns into] {new} in this: {text}",
        "[Can|May|Could] [I|we] have this with {new} instead of {old}: {text}", "[Show me|Tell me|I wonder|I want to know] how [this|this text|it] [reads|looks|sounds] with {new} [instead of|for] {old}: {text}", "[This|This text|The same text] [again|once more][, but|] with {new} [instead of|for] {old}: {text}",
        "[I need|Make|Write] a copy of this [text|] with {old} changed to {new}: {text}",
        "{old} -> {new}: {text}", "[Replace|Change] {old}, [new is|make it] {new}: {text}", "Text: {text}\n\n[Task: |]{new} instead of {old}[, please|].",
    ],
    "again": [
        "[Tell|Write] [it|that|the story|that story] again[, but|] with {new} instead of {old}.", "[Now|And] the same [story|] with {new} instead of {old}[, please|].", "[Replace|Exchange] {old} by {new}.", "[Change|Turn] {old} [to|into] {new}.", "[Again|Once more], but {old} is {new}[ now|].",
    ],
    "story_one": ["[Tell|Write] me a [story|short story|tale] about {ax}.", "[Can|Could] you tell a story about {ax}?", "A story about {ax}[, please|]!", "[I want|I'd like] a story with {ax}.", "Story: {x}", "[Tell|Write] [us|me] [something|a story] [about|with] {ax}, as a story.", "[Make up|Invent] a [story|tale] [about|with] {ax}.", "[The hero|Its hero] is {ax}. Tell the story."],
    "story_any": ["Tell me a [story|short story|bedtime story|tale].", "[Can|Could] you tell [me|us] a story?", "[I want|I'd like] a story.", "Write a story.", "Story[ please|]!", "Another story!", "Tell me another one.", "Surprise me with a story.", "Once upon a time", "Let me hear a [story|tale].", "[Story time|Time for a story][!|.]", "One more story[, please|].", "[Make up|Invent|Think of] a [story|tale]."],
    "story_extra": [" [It takes place|The story takes place|Set it|Let it happen|It should be set|Let it play] {place}."],
    "story_more": ["Now [one|a story] about {ax} and {ay}.", "[And|Now] with {ax} and {ay}?", "Another one, about {ax} and {ay}.", "[Tell|Write] me another story, about {ax} and {ay}.", "[The next|Next] story: {ax} and {ay}."],
    "as_json": [" [Answer|Reply|Respond] [as|in|with] JSON.", " [As|In] JSON[, please|].", " [Give|Return] [the answer as |me ]JSON.", " Use JSON.", " Answer as a JSON object."],
}

# Sentences around a request that ask for nothing.
BEFORE = [
    "I have [a|one more|another] [question|task|wish|request|job][ for you|].", "[My|Our] [son|daughter|friend|teacher|sister|brother|boss|family|class] [wants|asks|needs] [this|something|your help|to know something|to hear something].",
    "It is [late|early|cold|raining|time for bed|Monday|a long day|dark].", "I am [tired|bored|at home|at school|on a train|learning English|new here|in bed].", "We are [playing a game|learning|having fun|waiting|in class].", "Here is [a|my|the|your] [task|question|wish|next one|first one|exercise].",
    "[Listen|Look|Read|Think] [well|here|at this|about it|first|again].", "Let us [try|play|begin|start|do] [something|this|a game|again].", "This is [easy|hard|important|for school|for my homework|a test|fun|new].", "[Now|Next|First|Then|Today|Again|So|Also|Well|Right|Good|Great|Fine|Ready]:", "You [are|seem] [nice|kind|clever|good at this].",
    "I [hope|think|know|believe] you can [help|do it|do this|answer].", "[Help me|Help us|Help them] with this.", "[My|The] children [are here|are in bed|sleep soon|love this|are tired].", "I [like|love|need] [this|words|numbers|stories|your help].", "[Do|Have] you [have time|got a minute]?", "[Good|Very good], [thank you|and now this].",
]
AFTER = [
    "[It is|This is] for [my son|school|a friend|my homework|the children|them].", "[Thank you|Thanks] [very much|a lot|so much].", "[Be|Please be] [quick|careful|exact|brief|kind].", "I [can't|cannot] do it [myself|alone|now].", "Take your time.", "I am not sure.", "That would [help|be nice|be great].", "They will [love|like] it.", "We are [listening|waiting|ready].", "[Can|Could] you[ do it| do that|]?",
    "[Today|Now|Then|Quickly], please.", "I need [it|this] [now|today|for school].", "Do it for [me|us|them].", "[It|This] is [important|for all of us].", "My [sister|friend|teacher] [asks|wants to know].", "[For us|For me|For them], please.",
]
SPICE = "also then now just really quickly maybe again too both even here there first today please only simply next very".split()

HELD_OUT = {
    "story": [
        "Please think of a new tale that has {ax} and {ay} in it.",
        "My children want to hear about {ax} and {ay} before they sleep. Tell them a story!",
        "Let me hear one of your stories, this time with {ax} and {ay}.",
        "Write a very short story for me. The heroes are {ax} and {ay}.",
        "Would you make up a tale about {ax} and also {ay}?",
        "Story time! Today it is about {ax} and {ay}.",
    ],
    "continue": [
        "I wrote the first lines of a story, now you write the rest: {text}",
        "Read this and then tell me how the story goes on: {text}",
        "{text}\n\nNow write what happens next in this story.",
        "Here are the first sentences. Please finish the tale: {text}",
    ],
    "summary": [
        "Read this story and tell me in one sentence what happens: {text}",
        "{text}\n\nWhat is that story about? One line, please.",
        "Write one line that sums up the text: {text}",
        "Please give a summary of one sentence for this: {text}",
    ],
    "letters": [
        "Take the word {q} and count its letters.", "{q} is a word. Of how many letters is it made?", "What number of letters does {q} have?",
    ],
    "letter": [
        "Look at the word {q}: how many times do you find the letter {l}?", "How many of the letters in {q} are {l}?",
        "Please count how many {l}'s the word {q} has.",
    ],
    "words": [
        "This is my sentence: {text} How many words did I use?", "I wrote this: {text} How many words are there?",
    ],
    "items": [
        "Here is my list: {text}. Count how many items it has.", "Tell me how many things are named here: {text}",
    ],
    "spell": ["Tell me how {q} is spelled.", "Which letters make the word {q}? Spell it.", "Would you spell the word {q} out for us?"],
    "spell_two": ["Here are two words, {q} and {r}. Spell both.", "Tell me how to spell {q} and also {r}.", "My son has to learn {q} and {r}. Spell them for him."],
    "reverse": ["Take {q} and write it from the end to the start.", "How does the word {q} look when it is reversed?", "Please start {q} at its last letter and spell to the first."],
    "larger": ["Of the numbers {a} and {b}, which one is larger?", "Here are two numbers, {a} and {b}. Tell me the bigger one.", "If you compare {a} with {b}, which one is greater?"],
    "smaller": ["Of the numbers {a} and {b}, which one is smaller?", "Here are two numbers, {a} and {b}. Tell me the smaller one."],
    "yes_no": ["Somebody says that {a} is larger than {b}. Is that true?", "Yes or no, is {a} a bigger number than {b}?"],
    "rewrite": [
        "Please copy this text for me, but put {new} where it says {old}: {text}",
        "{text}\n\nNow the same text with a single difference: {old} becomes {new}.",
        "I want to see this text once more, only that {old} is now {new}: {text}",
        "Read this and give it back to me with {new} in the place of {old}: {text}",
    ],
    "json": ["I collect these in a JSON object: {fields}. Print it.", "Here is my data: {fields}. Write it as a JSON object."],
}


for _kind, _forms in BASICS.items():
    WHOLE[_kind] = _forms["whole"]
    CORES[_kind] = {form: cores for form, cores in _forms.items() if form != "whole"}


def compose(frame, core):
    """A core in its frame."""
    return frame.replace("<C>", core[:1].upper() + core[1:]).replace("<c>", core)


def phrasings(kind):
    """All templates of a kind with their choices open: whole ones, and each core in each of its frames."""
    yield from WHOLE.get(kind, [])
    for form, cores in CORES.get(kind, {}).items():
        for core in cores:
            for frame in FRAMES[form]:
                yield frame, core
