//! Memory access on ppc32.

words_that_may_fault!(reg_nonzero, "lwz {word}, 0({word})", "stw {word}, 0({to})", "li {failed}, 1", "b");

copy_that_may_fault!(
    reg_nonzero,
    "cmplwi {left}, {word}",
    "blt 9f",
    "7: lwz {item}, 0({from})",
    "8: stw {item}, 0({to})",
    "addi {to}, {to}, {word}",
    "addi {from}, {from}, {word}",
    "addi {left}, {left}, -{word}",
    "cmplwi {left}, {word}",
    "bge 7b",
    "9: cmplwi {left}, 0",
    "beq 6f",
    "4: lbz {item}, 0({from})",
    "5: stb {item}, 0({to})",
    "addi {to}, {to}, 1",
    "addi {from}, {from}, 1",
    "addi {left}, {left}, -1",
    "cmplwi {left}, 0",
    "bne 4b",
    "6:",
);
