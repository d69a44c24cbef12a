//! `kernels`: do the inner loops of the built program keep their sums in registers?
//!
//! Compilers regroup long chains of sums and then run out of registers. So every innermost loop of the kernels that
//! multiplies is disassembled and its accesses to the stack with vectors are counted.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use crate::shell;

/// Instructions that multiply and add.
const PRODUCTS: [&str; 5] = ["vpdpbusd", "vpmaddubsw", "vfmadd", "vfnmadd", "tdpbssd"];
/// Loops with fewer products are not where time goes.
const LEAST_PRODUCTS: usize = 8;
/// Stack accesses per product that a set may have at most: with 16 registers AVX2 keeps some sums in memory.
const LIMITS: [(&str, f64); 2] = [("avx512", 0.5), ("avx2", 2.0)];

/// One innermost loop.
struct Loop {
    set: &'static str,
    products: usize,
    stack: usize,
    instructions: usize,
}

impl Loop {
    fn share(&self) -> f64 {
        self.stack as f64 / self.products as f64
    }
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
    for (set, most) in LIMITS {
        let of_set: Vec<&Loop> = loops.iter().filter(|l| l.set == set).collect();
        let spilling = of_set.iter().filter(|l| l.stack > 0).count();
        println!(
            "{set}: {} loops, {spilling} with vectors on the stack",
            of_set.len()
        );
        for l in of_set.iter().filter(|l| l.share() > most) {
            let (products, stack, all) = (l.products, l.stack, l.instructions);
            println!("  {products} products, {stack} stack accesses, {all} instructions");
            worst += 1;
        }
    }
    if worst > 0 {
        bail!("{worst} inner loops use the stack more than they may");
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
    let sets = LIMITS.iter().map(|l| l.0);
    sets.into_iter()
        .find(|set| kernel && function.contains(set))
}

/// Loops of a function that hold no other loop.
fn innermost(set: &'static str, body: &[(u64, &str)]) -> Vec<Loop> {
    let places: BTreeMap<u64, usize> = body.iter().enumerate().map(|(i, b)| (b.0, i)).collect();
    let jump = |(end, &(_, code)): (usize, &(u64, &str))| {
        let (name, rest) = code.split_once(' ')?;
        let target = rest.split_whitespace().next()?;
        let start = *places.get(&u64::from_str_radix(target, 16).ok()?)?;
        (name.starts_with('j') && start <= end).then_some((start, end))
    };
    let back: Vec<(usize, usize)> = body.iter().enumerate().filter_map(jump).collect();
    let inner = back.iter().filter(|a| {
        let holds = |b: &(usize, usize)| b != *a && b.0 >= a.0 && b.1 <= a.1;
        !back.iter().any(holds)
    });
    let loops = inner.map(|&(start, end)| count(set, &body[start..=end]));
    loops.filter(|l| l.products >= LEAST_PRODUCTS).collect()
}

fn count(set: &'static str, body: &[(u64, &str)]) -> Loop {
    let is_product = |code: &str| PRODUCTS.iter().any(|p| code.starts_with(p));
    let is_vector = |code: &str| code.contains("ymm") || code.contains("zmm");
    // Vectors are aligned on the stack and so reached from its pointer; the frame's register may hold any address.
    let on_stack = |code: &str| code.contains("(%rsp)");
    Loop {
        set,
        products: body.iter().filter(|b| is_product(b.1)).count(),
        stack: body
            .iter()
            .filter(|b| is_vector(b.1) && on_stack(b.1))
            .count(),
        instructions: body.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_are_found_and_stack_accesses_counted() {
        let product = "vpdpbusd %zmm1,%zmm2,%zmm3";
        let mut text = "0000000000000010 <_ZN6matmul6avx5127enabled17h0E>:\n".to_owned();
        text += "  10:\txor    %eax,%eax\n";
        for i in 0..LEAST_PRODUCTS {
            text += &format!("  {:x}:\t{product}\n", 0x20 + i);
        }
        text += "  40:\tvmovaps %zmm3,0x40(%rsp)\n  41:\tmov    %rax,0x8(%rsp)\n";
        text += "  42:\tvaddps 0x40(%rbp),%zmm1,%zmm1\n";
        text += "  43:\tjne    20 <_ZN6matmul6avx5127enabled17h0E+0x10>\n";
        text += "  44:\tjne    10 <_ZN6matmul6avx5127enabled17h0E>\n";
        text += "0000000000000050 <main>:\n  50:\tret\n";
        let loops = loops(&text);
        assert_eq!(loops.len(), 1);
        let found = (loops[0].products, loops[0].stack, loops[0].instructions);
        assert_eq!(found, (LEAST_PRODUCTS, 1, LEAST_PRODUCTS + 4));
    }
}
