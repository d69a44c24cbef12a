//! `kernels`: do the inner loops of the built program keep their sums in registers?
//!
//! Compilers regroup long chains of sums and then run out of registers. So every innermost loop of the kernels that
//! multiplies is disassembled, and the vectors that it stores on the stack are counted. Constants that are read from there
//! cost no more than from elsewhere.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use crate::shell;

/// Instructions that multiply and add.
const PRODUCTS: [&str; 5] = ["vpdpbusd", "vpmaddubsw", "vfmadd", "vfnmadd", "tdpbssd"];
/// Loops with fewer products are not where time goes.
const LEAST_PRODUCTS: usize = 8;
/// Sets by a part of their functions' names; the first that fits counts.
const SETS: [&str; 4] = ["avx512bw", "avx512", "avxvnni", "avx2"];

/// One innermost loop.
struct Loop {
    set: &'static str,
    products: usize,
    /// Vectors that it stores on the stack.
    stored: usize,
    instructions: usize,
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    let usual = || shell::root().join("target/release/tokkata");
    let program = args.first().map_or_else(usual, PathBuf::from);
    let mut objdump = Command::new("objdump");
    objdump.args(["-d", "--no-show-raw-insn"]).arg(program);
    let loops = loops(&shell::output(&mut objdump)?);
    if loops.is_empty() {
        bail!("the program has no kernels: is it an optimised build for x86-64?");
    }
    let mut worst = 0;
    for set in SETS {
        let of_set: Vec<&Loop> = loops.iter().filter(|l| l.set == set).collect();
        let spilling: Vec<&&Loop> = of_set.iter().filter(|l| l.stored > 0).collect();
        println!(
            "{set}: {} loops, {} store vectors on the stack",
            of_set.len(),
            spilling.len()
        );
        for l in &spilling {
            let (products, stored, all) = (l.products, l.stored, l.instructions);
            println!("  {products} products, {stored} stores, {all} instructions");
        }
        worst += spilling.len();
    }
    if worst > 0 {
        bail!("{worst} inner loops keep sums on the stack");
    }
    Ok(())
}

/// The innermost loops of all kernels in a disassembly.
fn loops(text: &str) -> Vec<Loop> {
    let (mut found, mut set, mut body) = (Vec::new(), None, Vec::new());
    for line in text.lines() {
        if let Some((_, name)) = line.strip_suffix(">:").and_then(|l| l.split_once(" <")) {
            found.extend(set.into_iter().flat_map(|set| innermost(set, &body)));
            set = set_of(name);
            body.clear();
        } else if let Some((address, code)) = line.trim_start().split_once(":\t")
            && let Ok(address) = u64::from_str_radix(address, 16)
        {
            body.push((address, code));
        }
    }
    found.extend(set.into_iter().flat_map(|set| innermost(set, &body)));
    found
}

/// The set that a function of the kernels belongs to.
fn set_of(function: &str) -> Option<&'static str> {
    let kernel = ["matmul", "attention"].iter().any(|k| function.contains(k));
    SETS.into_iter()
        .find(|set| kernel && function.contains(set))
}

/// Loops of a function with products that hold no other such loop.
fn innermost(set: &'static str, body: &[(u64, &str)]) -> Vec<Loop> {
    let places: BTreeMap<u64, usize> = body.iter().enumerate().map(|(i, b)| (b.0, i)).collect();
    let jump = |(end, &(_, code)): (usize, &(u64, &str))| {
        let (name, rest) = code.split_once(' ')?;
        let target = rest.split_whitespace().next()?;
        let start = *places.get(&u64::from_str_radix(target, 16).ok()?)?;
        (name.starts_with('j') && start <= end).then_some((start, end))
    };
    let multiplies =
        |&(start, end): &(usize, usize)| products(&body[start..=end]) >= LEAST_PRODUCTS;
    let back = body.iter().enumerate().filter_map(jump);
    let back: Vec<(usize, usize)> = back.filter(multiplies).collect();
    let inner = back.iter().filter(|a| {
        let holds = |b: &(usize, usize)| b != *a && b.0 >= a.0 && b.1 <= a.1;
        !back.iter().any(holds)
    });
    inner
        .map(|&(start, end)| count(set, &body[start..=end]))
        .collect()
}

fn products(body: &[(u64, &str)]) -> usize {
    let is_product = |code: &str| {
        // Disassemblers say which of two encodings an instruction has.
        let code = code.strip_prefix("{vex} ").unwrap_or(code);
        PRODUCTS.iter().any(|p| code.starts_with(p))
    };
    body.iter().filter(|b| is_product(b.1)).count()
}

fn count(set: &'static str, body: &[(u64, &str)]) -> Loop {
    let is_vector = |code: &str| code.contains("ymm") || code.contains("zmm");
    // Vectors are aligned on the stack and so reached from its pointer; the frame's register may hold any address.
    // What an instruction writes comes last.
    let stores = |code: &str| is_vector(code) && code.trim_end().ends_with("(%rsp)");
    Loop {
        set,
        products: products(body),
        stored: body.iter().filter(|b| stores(b.1)).count(),
        instructions: body.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(function: &str, product: &str) -> String {
        let mut text = format!("0000000000000010 <{function}>:\n");
        text += "  10:\txor    %eax,%eax\n";
        for i in 0..LEAST_PRODUCTS {
            text += &format!("  {:x}:\t{product}\n", 0x20 + i);
        }
        text += "  3e:\tprefetcht1 (%rax)\n  3f:\tjne    3e <x>\n";
        text += "  40:\tvmovaps %zmm3,0x40(%rsp)\n  41:\tmov    %rax,0x8(%rsp)\n";
        text += "  42:\tvaddps 0x40(%rsp),%zmm1,%zmm1\n";
        text += "  43:\tjne    20 <x+0x10>\n";
        text += "  44:\tjne    10 <x>\n";
        text += "0000000000000050 <main>:\n  50:\tret\n";
        text
    }

    #[test]
    fn loops_are_found_and_vectors_stored_on_the_stack_counted() {
        let found = |function: &str, product: &str| {
            let loops = loops(&listing(function, product));
            assert_eq!(loops.len(), 1);
            (
                loops[0].set,
                loops[0].products,
                loops[0].stored,
                loops[0].instructions,
            )
        };
        let (vnni, all) = ("vpdpbusd %zmm1,%zmm2,%zmm3", LEAST_PRODUCTS + 6);
        assert_eq!(
            found("_ZN6matmul6avx5127avx5127h0E", vnni),
            ("avx512", LEAST_PRODUCTS, 1, all)
        );
        let vex = "{vex} vpdpbusd %ymm1,%ymm2,%ymm3";
        assert_eq!(
            found("_ZN6matmul4avx212with_avxvnni17h0E", vex),
            ("avxvnni", LEAST_PRODUCTS, 1, all)
        );
    }
}
