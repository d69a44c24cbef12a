//! What makes an answer right.

use std::collections::HashSet;

/// How answers to a section of questions are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judge {
    /// All numbers of the answer are these, in order.
    Numbers,
    /// The first number, day or month of the answer is this.
    First,
    /// The last number of the answer is this.
    Last,
    /// Days and months of the answer are these, in order.
    List,
    Yes,
    No,
    /// A JSON list of so many different things of a kind.
    Json,
    /// This JSON value.
    Value,
    /// All of these words are in the answer.
    Mentions,
    /// A place of which the told story speaks.
    Place,
    /// A whole story that has these words.
    Story,
    /// The answer has this text.
    Says,
    /// It says that it cannot, or what it is.
    Refuses,
    /// It greets, and says what it is.
    Greets,
}

impl Judge {
    /// By the first word of a heading.
    pub(crate) fn named(heading: &str) -> Self {
        match heading.split(':').next().unwrap_or(heading) {
            "numbers" => Judge::Numbers,
            "first" => Judge::First,
            "last" | "result" => Judge::Last,
            "list" => Judge::List,
            "yes" => Judge::Yes,
            "no" => Judge::No,
            "json" => Judge::Json,
            "value" => Judge::Value,
            "mentions" => Judge::Mentions,
            "place" => Judge::Place,
            "story" => Judge::Story,
            "says" => Judge::Says,
            "refuses" => Judge::Refuses,
            "greets" => Judge::Greets,
            other => panic!("no judge is called {other}"),
        }
    }
}

/// What is wrong with the last of the answers.
pub(crate) fn judge(judge: Judge, said: &[String], right: &str) -> Result<(), String> {
    let answer = said.last().map_or("", String::as_str);
    let wanted: Vec<&str> = right.split(' ').filter(|w| !w.is_empty()).collect();
    match judge {
        Judge::Numbers => same(&numbers(answer), &wanted),
        Judge::First => same(
            &named(answer).into_iter().take(1).collect::<Vec<_>>(),
            &wanted,
        ),
        Judge::Last => same(numbers(answer).into_iter().next_back().as_slice(), &wanted),
        Judge::List => same(&calendar(answer), &wanted),
        Judge::Yes => begins(answer, "Yes"),
        Judge::No => begins(answer, "No"),
        Judge::Json => things(answer, right),
        Judge::Value => value(answer, right),
        Judge::Mentions => mentions(answer, &wanted),
        Judge::Place => place(answer, &said[0]),
        Judge::Story => whole_story(answer).and(mentions(answer, &wanted)),
        Judge::Says => must(answer.contains(right), &format!("says {right}")),
        Judge::Refuses => must(refuses(answer), "says that it cannot"),
        Judge::Greets => must(answer.contains("small model"), "says what it is"),
    }
}

fn must(holds: bool, what: &str) -> Result<(), String> {
    if holds {
        Ok(())
    } else {
        Err(format!("expected that it {what}"))
    }
}

fn same(found: &[impl AsRef<str>], wanted: &[&str]) -> Result<(), String> {
    let found: Vec<&str> = found.iter().map(AsRef::as_ref).collect();
    if found == wanted {
        Ok(())
    } else {
        Err(format!("found {found:?}, expected {wanted:?}"))
    }
}

fn begins(answer: &str, word: &str) -> Result<(), String> {
    must(
        answer.split(|c: char| !c.is_alphabetic()).next() == Some(word),
        &format!("begins with {word}"),
    )
}

const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The words of a text, and its numbers with their decimals.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let inside = |c: char| c.is_alphanumeric() || c == '.' || c == '-';
    text.split(move |c| !inside(c))
        .map(|w| w.trim_end_matches(['.', '-']))
        .filter(|w| !w.is_empty())
}

fn numbers(text: &str) -> Vec<&str> {
    words(text).filter(|w| w.parse::<f64>().is_ok()).collect()
}

fn calendar(text: &str) -> Vec<&str> {
    words(text)
        .filter(|w| DAYS.contains(w) || MONTHS.contains(w))
        .collect()
}

/// Numbers, days and months.
fn named(text: &str) -> Vec<&str> {
    let known = |w: &&str| DAYS.contains(w) || MONTHS.contains(w) || w.parse::<f64>().is_ok();
    words(text).filter(known).collect()
}

fn value(answer: &str, right: &str) -> Result<(), String> {
    let parse =
        |text: &str| serde_json::from_str::<serde_json::Value>(text).map_err(|e| e.to_string());
    must(parse(answer)? == parse(right)?, &format!("is {right}"))
}

/// What may stand in a list of each kind.
const KINDS: [(&str, &str); 14] = [
    (
        "fruits",
        "apple banana cherry orange pear plum grape peach lemon melon mango kiwi lime fig apricot strawberry raspberry blueberry pineapple",
    ),
    (
        "animals",
        "dog cat horse cow pig sheep goat hen duck goose donkey lion bear mouse rabbit tiger elephant fox wolf hamster parrot goldfish pony turtle canary lizard deer owl",
    ),
    (
        "colors",
        "red blue green yellow black white brown orange purple pink gray grey gold silver",
    ),
    (
        "vegetables",
        "carrot potato tomato onion cabbage pea bean pumpkin cucumber leek lettuce spinach radish",
    ),
    (
        "instruments",
        "piano guitar violin flute drum trumpet harp cello horn organ",
    ),
    (
        "birds",
        "robin crow owl eagle swan duck goose sparrow raven parrot hen falcon heron",
    ),
    (
        "drinks",
        "water milk tea coffee juice lemonade cocoa soda cider wine",
    ),
    (
        "toys",
        "ball doll kite puzzle robot train drum sled puppet marble",
    ),
    (
        "tools",
        "hammer saw drill screwdriver pliers wrench shovel rake axe ladder",
    ),
    (
        "clothes",
        "shirt coat hat scarf shoe sock glove dress skirt jacket boot",
    ),
    ("names", "tom anna ben mia leo emma sam lucy max nora"),
    (
        "flowers",
        "rose tulip daisy lily sunflower violet orchid poppy iris lilac",
    ),
    (
        "kitchen",
        "spoon fork knife plate cup bowl pot pan kettle glass",
    ),
    (
        "shapes",
        "circle square triangle rectangle star oval cube cone",
    ),
];
/// Kinds that a question names and that have a row of their own.
const MORE_KINDS: [(&str, &str); 2] = [
    (
        "vehicles",
        "car bus truck bicycle train tram van taxi tractor scooter boat ship",
    ),
    (
        "foods",
        "bread cheese rice soup pasta egg potato salad cake butter",
    ),
];

fn things(answer: &str, right: &str) -> Result<(), String> {
    let list: Vec<String> = serde_json::from_str(answer).map_err(|e| e.to_string())?;
    let (count, kind) = right.split_once(' ').expect("a number and a kind");
    let row = KINDS
        .iter()
        .chain(&MORE_KINDS)
        .find(|(name, _)| *name == kind);
    let known: Vec<&str> = row.expect("a known kind").1.split(' ').collect();
    let different: HashSet<&String> = list.iter().collect();
    must(list.len().to_string() == count, &format!("has {count}"))?;
    must(different.len() == list.len(), "has no thing twice")?;
    let strange = list
        .iter()
        .find(|thing| !known.contains(&thing.to_lowercase().as_str()));
    strange.map_or(Ok(()), |thing| {
        Err(format!("{thing} is none of the {kind}"))
    })
}

fn mentions(answer: &str, wanted: &[&str]) -> Result<(), String> {
    let lower = answer.to_lowercase();
    let has = |w: &str| words(&lower).any(|word| word == w || word.strip_suffix('s') == Some(w));
    let missing = wanted.iter().find(|w| !has(&w.to_lowercase()));
    missing.map_or(Ok(()), |word| Err(format!("does not mention {word}")))
}

/// The last words of an answer about a place are in the story.
fn place(answer: &str, story: &str) -> Result<(), String> {
    let words: Vec<&str> = words(answer).collect();
    let end = words[words.len().saturating_sub(3)..].join(" ");
    let told = story.to_lowercase();
    must(
        words.len() >= 4 && told.contains(&end.to_lowercase()),
        &format!("ends with a place of the story: {end}"),
    )
}

fn whole_story(answer: &str) -> Result<(), String> {
    let sentences = answer.matches(['.', '!', '?']).count();
    must(
        (6..40).contains(&sentences) && words(answer).count() >= 40,
        "is a whole story",
    )
}

fn refuses(answer: &str) -> bool {
    const WAYS: [&str; 8] = [
        "cannot",
        "do not know",
        "know nothing",
        "do not understand",
        "only understand",
        "small model",
        "more than I can",
        "only know",
    ];
    answer.len() < 400 && WAYS.iter().any(|way| answer.contains(way))
}

#[test]
fn judges_see_what_is_wrong() {
    let right = |j, said: &str, wanted: &str| judge(j, &[said.to_owned()], wanted).is_ok();
    assert!(right(Judge::Numbers, "3, 4, 5.", "3 4 5"));
    assert!(!right(Judge::Numbers, "3, 4, 5, 6.", "3 4 5"));
    assert!(right(Judge::First, "9.11 is smaller than 9.9.", "9.11"));
    assert!(!right(Judge::First, "9 is smaller than 9.", "9.11"));
    assert!(right(
        Judge::First,
        "Tuesday comes after Monday.",
        "Tuesday"
    ));
    assert!(!right(
        Judge::First,
        "Monday comes before Tuesday.",
        "Tuesday"
    ));
    assert!(right(Judge::Last, "12 + 7 = 19.", "19"));
    assert!(!right(Judge::Last, "12 + 7 = 20.", "19"));
    assert!(right(Judge::List, "Saturday, Sunday.", "Saturday Sunday"));
    assert!(!right(Judge::List, "Sunday, Saturday.", "Saturday Sunday"));
    assert!(
        right(Judge::Yes, "Yes, 5 is larger than 3.", "yes")
            && !right(Judge::Yes, "No, it is.", "yes")
    );
    assert!(right(Judge::Json, r#"["apple", "pear"]"#, "2 fruits"));
    for wrong in [
        r#"["apple"]"#,
        r#"["apple", "apple"]"#,
        r#"["apple", "dog"]"#,
        "apple, pear",
    ] {
        assert!(!right(Judge::Json, wrong, "2 fruits"), "{wrong}");
    }
    assert!(right(Judge::Value, "[1,2]", "[1, 2]") && !right(Judge::Value, "[2,1]", "[1, 2]"));
    assert!(right(
        Judge::Mentions,
        "A fox and a lantern.",
        "fox lantern"
    ));
    assert!(!right(
        Judge::Mentions,
        "A foxglove and a lantern.",
        "fox lantern"
    ));
    assert!(!right(Judge::Story, "A fox and a lantern.", "fox lantern"));
    assert!(
        right(Judge::Refuses, "I cannot write code.", "") && !right(Judge::Refuses, "Lisbon.", "")
    );
    let told = |end: &str| {
        judge(
            Judge::Place,
            &["A fox lived in a grey castle.".to_owned(), end.to_owned()],
            "",
        )
    };
    assert!(told("It takes place in a grey castle.").is_ok());
    assert!(told("It takes place in a dark cave.").is_err());
}
