//! Grammars, and walks through them by hand.

use std::ffi::c_char;
use std::sync::{Arc, Mutex};

use tokkata::grammar::{Grammar, GrammarSource, GrammarState, Trigger};

use crate::border::{fill, guard, place, room, text};
use crate::handle::Table;
use crate::model::model;
use crate::request::alone;
use crate::status::{Error, OK};
use crate::tokens::parsed;
use crate::types::{tokkata_grammar, tokkata_matcher, tokkata_model};

static GRAMMARS: Table<Grammar> = Table::new();
static MATCHERS: Table<Mutex<Walk>> = Table::new();

/// A walk, and how many words its masks have.
struct Walk {
    state: GrammarState,
    words: usize,
}

/// The grammar of a handle.
pub(crate) fn grammar(handle: *const tokkata_grammar) -> Result<Arc<Grammar>, Error> {
    GRAMMARS.get(handle)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_grammar_new(
    model: *const tokkata_model,
    kind: i32,
    source: *const c_char,
    len: usize,
    out: *mut *mut tokkata_grammar,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let model = self::model(model)?;
        let (source, out) = (text(source, len, "source")?, place(out, "out")?);
        let source = match kind {
            0 => GrammarSource::JsonSchema(parsed(source)?),
            1 => GrammarSource::Regex(source.to_owned()),
            2 => GrammarSource::Lark(source.to_owned()),
            3 => GrammarSource::Gbnf(source.to_owned()),
            other => {
                return Err(Error::argument(format!(
                    "kind: found {other}, expected 0 to 3"
                )));
            }
        };
        let grammar = model.service()?.grammar(source, Trigger::Now)?;
        out.write(GRAMMARS.add(grammar));
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn tokkata_grammar_free(grammar: *mut tokkata_grammar) -> i32 {
    guard(|| {
        GRAMMARS.remove(grammar)?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_matcher_new(
    grammar: *const tokkata_grammar,
    out: *mut *mut tokkata_matcher,
) -> i32 {
    guard(|| {
        let grammar = self::grammar(grammar)?;
        // SAFETY: the caller's place.
        let out = unsafe { place(out, "out") }?;
        out.write(MATCHERS.add(Mutex::new(Walk {
            state: grammar.start(),
            words: grammar.mask_len(),
        })));
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn tokkata_matcher_free(matcher: *mut tokkata_matcher) -> i32 {
    guard(|| {
        MATCHERS.remove(matcher)?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_matcher_mask(
    matcher: *mut tokkata_matcher,
    out: *mut u32,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let matcher = MATCHERS.get(matcher)?;
        let mut walk = alone(&matcher, "matcher")?;
        let mut words = vec![0; walk.words];
        place(needed, "needed")?.write(words.len());
        if room((out, capacity), words.len())? {
            walk.state.mask(&mut words).map_err(tokkata::Error::from)?;
        }
        fill(&words, (out, capacity), needed)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn tokkata_matcher_accept(matcher: *mut tokkata_matcher, token: u32) -> i32 {
    guard(|| {
        let matcher = MATCHERS.get(matcher)?;
        let taken = alone(&matcher, "matcher")?.state.accept(token);
        taken.map_err(tokkata::Error::from)?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn tokkata_matcher_rollback(matcher: *mut tokkata_matcher, tokens: usize) -> i32 {
    guard(|| {
        let matcher = MATCHERS.get(matcher)?;
        let back = alone(&matcher, "matcher")?.state.rollback(tokens);
        back.map_err(tokkata::Error::from)?;
        Ok(OK)
    })
}
