//! The C interface of @name@, as its headers in `c/` explain it.
#![no_std]
#![allow(non_camel_case_types, non_snake_case)]

@sys_modules@