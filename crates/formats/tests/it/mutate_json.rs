//! Changes to JSON text that keep it JSON, so that what is wrong lies in its values. The fuzz targets use this file too.

use serde_json::{Map, Value};

/// A splitmix64 sequence of choices.
struct Choices(u64);

impl Choices {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// `text` with one to three of its values changed; `donor` lends values. `None` if it is no JSON.
pub(crate) fn mutate(text: &[u8], donor: &Value, seed: u64) -> Option<Vec<u8>> {
    let mut root: Value = serde_json::from_slice(text).ok()?;
    let mut choices = Choices(seed);
    for _ in 0..=choices.below(3) {
        edit(&mut root, donor, &mut choices);
    }
    serde_json::to_vec(&root).ok()
}

fn edit(root: &mut Value, donor: &Value, choices: &mut Choices) {
    let at = choices.below(count(root));
    let place = nth(root, &mut { at }).expect("it was counted");
    match choices.below(12) {
        0 | 1 => *place = odd(choices),
        2 | 3 => *place = pick(donor, choices),
        4 | 5 => remove(place, choices),
        6 => lend(place, donor, choices),
        7 => rename(place, choices),
        8 => repeat(place, choices),
        9 => wrap(place, choices),
        _ => tweak(place, choices),
    }
}

fn children(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(map) => Box::new(map.values()),
        _ => Box::new(std::iter::empty()),
    }
}

fn count(value: &Value) -> usize {
    1 + children(value).map(count).sum::<usize>()
}

/// The value so many values below, itself first.
fn nth<'a>(value: &'a mut Value, left: &mut usize) -> Option<&'a mut Value> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    let below: Box<dyn Iterator<Item = &mut Value>> = match value {
        Value::Array(items) => Box::new(items.iter_mut()),
        Value::Object(map) => Box::new(map.values_mut()),
        _ => return None,
    };
    for child in below {
        let size = count(child);
        if *left < size {
            return nth(child, left);
        }
        *left -= size;
    }
    None
}

fn pick(donor: &Value, choices: &mut Choices) -> Value {
    let mut found = donor;
    while let Some(child) = children(found).nth(choices.below(children(found).count() + 1)) {
        found = child;
    }
    found.clone()
}

/// Values at the edges of what a setting may be.
fn odd(choices: &mut Choices) -> Value {
    const ODD: &[&str] = &[
        "null",
        "true",
        "false",
        "0",
        "1",
        "2",
        "3",
        "-1",
        "0.5",
        "1e300",
        "-1e-300",
        "255",
        "65536",
        "2147483647",
        "4294967295",
        "4294967296",
        "18446744073709551615",
        "-9223372036854775808",
        "\"\"",
        "\"x\"",
        "\"\\u0000\"",
        "\"é\"",
        "\"../a\"",
        "[]",
        "{}",
        "[0]",
        "[1, \"a\"]",
        "{\"a\": null}",
    ];
    serde_json::from_str(ODD[choices.below(ODD.len())]).expect("JSON")
}

fn key(map: &Map<String, Value>, choices: &mut Choices) -> Option<String> {
    map.keys().nth(choices.below(map.len())).cloned()
}

fn remove(place: &mut Value, choices: &mut Choices) {
    match place {
        Value::Object(map) => drop(key(map, choices).and_then(|k| map.remove(&k))),
        Value::Array(items) if !items.is_empty() => drop(items.remove(choices.below(items.len()))),
        other => *other = Value::Null,
    }
}

/// A key of one of the donor's objects, beside those that are there.
fn lend(place: &mut Value, donor: &Value, choices: &mut Choices) {
    let Value::Object(map) = place else { return };
    let mut picks = (0..3).map(|_| pick(donor, choices));
    let found = picks.find(Value::is_object);
    let from = found.as_ref().unwrap_or(donor).as_object();
    if let Some((key, value)) = from.and_then(|f| f.iter().nth(choices.below(f.len()))) {
        map.insert(key.clone(), value.clone());
    }
}

fn rename(place: &mut Value, choices: &mut Choices) {
    let Value::Object(map) = place else { return };
    let (Some(old), Some(other)) = (key(map, choices), key(map, choices)) else {
        return;
    };
    let new = match choices.below(4) {
        0 => format!("{old}_"),
        1 => old.chars().skip(1).collect(),
        2 => old.replace(|c: char| c.is_ascii_digit(), "7"),
        _ => other,
    };
    if let Some(value) = map.remove(&old) {
        map.insert(new, value);
    }
}

fn repeat(place: &mut Value, choices: &mut Choices) {
    let times = 1 + choices.below(16);
    match place {
        Value::Array(items) if !items.is_empty() => {
            let copy = items[choices.below(items.len())].clone();
            items.extend(std::iter::repeat_n(copy, times));
        }
        Value::String(text) if text.len() < 256 => *text = text.repeat(times),
        _ => {}
    }
}

fn wrap(place: &mut Value, choices: &mut Choices) {
    let inner = place.take();
    *place = match choices.below(3) {
        0 => Value::Object(Map::from_iter([("a".to_owned(), inner)])),
        _ => Value::Array(vec![inner]),
    };
}

fn tweak(place: &mut Value, choices: &mut Choices) {
    match place {
        Value::Number(number) => {
            let own = number.as_i64().unwrap_or(0);
            let near = [
                own.wrapping_add(1),
                own.wrapping_sub(1),
                own.wrapping_mul(2),
                own / 2,
                own << 32,
                -own.max(-9),
            ];
            *place = near[choices.below(near.len())].into();
        }
        Value::Bool(flag) => *flag = !*flag,
        Value::String(text) => drop(text.pop()),
        Value::Array(items) => items.reverse(),
        _ => {}
    }
}

#[test]
fn mutants_are_json_and_differ() {
    let text = br#"{"a":[1,2,{"b":"text"}],"c":4,"d":{"e":true}}"#;
    let donor = serde_json::json!({"k": [5, 6], "c": "other"});
    let mutants: std::collections::BTreeSet<Vec<u8>> = (0..1000)
        .filter_map(|seed| mutate(text, &donor, seed))
        .collect();
    assert!(mutants.len() > 300, "{} mutants", mutants.len());
    for mutant in mutants {
        assert!(serde_json::from_slice::<Value>(&mutant).is_ok());
    }
    assert_eq!(mutate(b"{", &donor, 1), None);
}
