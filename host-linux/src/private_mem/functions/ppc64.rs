//! The functions of `private_mem.rs` in assembly.

use crate::arch::function;

string_functions!(
    function!("memmove"),
    "subf 6,4,3; cmpld 6,5; blt 3f",
    function!("memcpy"),
    "mr 7,3",
    "srdi. 6,5,3; beq 2f; mtctr 6",
    "1: ld 0,0(4); addi 4,4,8; std 0,0(7); addi 7,7,8; bdnz 1b",
    "2: andi. 6,5,7; beqlr; mtctr 6",
    "6: lbz 0,0(4); addi 4,4,1; stb 0,0(7); addi 7,7,1; bdnz 6b",
    "blr",
    "3: mtctr 5; add 4,4,5; add 7,3,5",
    "4: lbzu 0,-1(4); stbu 0,-1(7); bdnz 4b",
    "blr",
    function!("memset"),
    "cmpdi 5,0; beqlr; mtctr 5; addi 7,3,-1",
    "5: stbu 4,1(7); bdnz 5b",
    "blr",
    function!("memcmp"),
    function!("bcmp"),
    "mr 6,3; li 3,0; cmpdi 5,0; beqlr; mtctr 5; addi 6,6,-1; addi 4,4,-1",
    "7: lbzu 0,1(6); lbzu 8,1(4); subf. 3,8,0; bnelr; bdnz 7b",
    "blr",
);
