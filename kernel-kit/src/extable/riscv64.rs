//! Memory access on riscv64.

words_that_may_fault!(reg, "ld {word}, 0({word})", "sd {word}, 0({to})", "li {failed}, 1", "j");

copy_that_may_fault!(
    reg,
    "addi {left}, {left}, -{word}",
    "bltz {left}, 9f",
    "7: ld {item}, 0({from})",
    "8: sd {item}, 0({to})",
    "addi {to}, {to}, {word}",
    "addi {from}, {from}, {word}",
    "addi {left}, {left}, -{word}",
    "bgez {left}, 7b",
    "9: addi {left}, {left}, {word}",
    "beqz {left}, 6f",
    "4: lbu {item}, 0({from})",
    "5: sb {item}, 0({to})",
    "addi {to}, {to}, 1",
    "addi {from}, {from}, 1",
    "addi {left}, {left}, -1",
    "bnez {left}, 4b",
    "6:",
);
