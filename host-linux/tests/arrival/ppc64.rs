std::arch::global_asm!(include_str!("ppc64.s"), elfv1 = const cfg!(target_abi = "elfv1") as i32);
