std::arch::global_asm!(include_str!("riscv64.s"));
