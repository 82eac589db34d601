//! Memory access on aarch64.

words_that_may_fault!(reg, "ldr {word}, [{word}]", "str {word}, [{to}]", "mov {failed}, #1", "b");

copy_that_may_fault!(
    reg,
    "cmp {left}, #{word}",
    "b.lo 9f",
    "7: ldr {item}, [{from}]",
    "8: str {item}, [{to}]",
    "add {to}, {to}, #{word}",
    "add {from}, {from}, #{word}",
    "sub {left}, {left}, #{word}",
    "cmp {left}, #{word}",
    "b.hs 7b",
    "9: cbz {left}, 6f",
    "4: ldrb {item:w}, [{from}]",
    "5: strb {item:w}, [{to}]",
    "add {to}, {to}, #1",
    "add {from}, {from}, #1",
    "subs {left}, {left}, #1",
    "b.ne 4b",
    "6:",
);
