package seccomp

import (
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// low are the bits of an argument that the kernel looks at where it takes an int. A
// filter sees all 64; a comparison of these would let a denied value through with any
// bit set above.
const low = 0xffffffff

// block is 2^n values of an int argument, the first a multiple of their number: what
// one comparison can tell.
type block struct{ first, count uint64 }

func (b block) of(arg uint) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: arg, Value: low &^ (b.count - 1), ValueTwo: b.first, Op: specs.OpMaskedEqual}
}

func ones(values ...uint64) (b []block) {
	for _, v := range values {
		b = append(b, block{v, 1})
	}
	return b
}

// is holds where an int argument has the value.
func is(arg uint, value uint64) specs.LinuxSeccompArg { return block{value, 1}.of(arg) }

// when decides about a call whose arguments, each named once, are all so.
func when(action specs.LinuxSeccompAction, e unix.Errno, name string, args ...specs.LinuxSeccompArg) specs.LinuxSyscall {
	c := specs.LinuxSyscall{Names: []string{name}, Action: action, Args: args}
	if action == specs.ActErrno {
		c.ErrnoRet = errno(e)
	}
	return c
}

func errno(e unix.Errno) *uint { return new(uint(e)) }
