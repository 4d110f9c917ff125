; Operations on words, for builds without optimisation: calls take less time to compile than the operations themselves.

define i32 @tc_ld32(ptr %address) {
  %word = load i32, ptr %address, align 1
  ret i32 %word
}

define i32 @tc_ldr(ptr %address) {
  %word = load i32, ptr %address, align 1
  ret i32 %word
}

define i32 @tc_smlad(i32 %a, i32 %b, i32 %c) {
  %a.moved = shl i32 %a, 16
  %a.low = ashr i32 %a.moved, 16
  %a.high = ashr i32 %a, 16
  %b.moved = shl i32 %b, 16
  %b.low = ashr i32 %b.moved, 16
  %b.high = ashr i32 %b, 16
  %low = mul i32 %a.low, %b.low
  %high = mul i32 %a.high, %b.high
  %products = add i32 %low, %high
  %sum = add i32 %products, %c
  ret i32 %sum
}

define i32 @tc_sxtab16(i32 %a, i32 %b) {
  %first.moved = shl i32 %b, 24
  %first = ashr i32 %first.moved, 24
  %third.moved = shl i32 %b, 8
  %third = ashr i32 %third.moved, 24
  %a.high = ashr i32 %a, 16
  %low = add i32 %a, %first
  %high = add i32 %a.high, %third
  %low.half = and i32 %low, 65535
  %high.half = shl i32 %high, 16
  %halves = or i32 %low.half, %high.half
  ret i32 %halves
}

define i32 @tc_sxtab16_ror8(i32 %a, i32 %b) {
  %turned = lshr i32 %b, 8
  %halves = call i32 @tc_sxtab16(i32 %a, i32 %turned)
  ret i32 %halves
}

define i32 @tc_sxtb16(i32 %a) {
  %halves = call i32 @tc_sxtab16(i32 0, i32 %a)
  ret i32 %halves
}

define i32 @tc_sxtb16_ror8(i32 %a) {
  %turned = lshr i32 %a, 8
  %halves = call i32 @tc_sxtab16(i32 0, i32 %turned)
  ret i32 %halves
}

define i32 @tc_smmlar(i32 %a, i32 %b, i32 %c) {
  %a.wide = sext i32 %a to i64
  %b.wide = sext i32 %b to i64
  %c.wide = sext i32 %c to i64
  %product = mul i64 %a.wide, %b.wide
  %c.moved = shl i64 %c.wide, 32
  %sum = add i64 %product, %c.moved
  %rounded = add i64 %sum, 2147483648
  %high = ashr i64 %rounded, 32
  %word = trunc i64 %high to i32
  ret i32 %word
}

define i32 @tc_ssat8(i32 %a) {
  %too.high = icmp sgt i32 %a, 127
  %below = select i1 %too.high, i32 127, i32 %a
  %too.low = icmp slt i32 %below, -128
  %byte = select i1 %too.low, i32 -128, i32 %below
  ret i32 %byte
}

define i32 @tc_ssat8_half(i32 %a) {
  %half = ashr i32 %a, 1
  %byte = call i32 @tc_ssat8(i32 %half)
  ret i32 %byte
}
