std::arch::global_asm!(include_str!("ppc64.s"));
