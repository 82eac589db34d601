std::arch::global_asm!(include_str!("ppc32.s"));
