//! Memory access on arm, in A32 and T32.

words_that_may_fault!(reg, "ldr {word}, [{word}]", "str {word}, [{to}]", "mov {failed}, #1", "b");

copy_that_may_fault!(
    reg,
    "cmp {left}, #{word}",
    "blo 9f",
    "7: ldr {item}, [{from}]",
    "8: str {item}, [{to}], #{word}",
    "add {from}, {from}, #{word}",
    "sub {left}, {left}, #{word}",
    "cmp {left}, #{word}",
    "bhs 7b",
    "9: cmp {left}, #0",
    "beq 6f",
    "4: ldrb {item}, [{from}], #1",
    "5: strb {item}, [{to}], #1",
    "subs {left}, {left}, #1",
    "bne 4b",
    "6:",
);
