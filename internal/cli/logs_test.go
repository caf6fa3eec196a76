package cli

import (
	"strings"
	"testing"
)

func TestLogOutputIsHarmless(t *testing.T) {
	var b strings.Builder
	o := logOutput{w: &b, prefix: true, middle: map[string]bool{}}
	for _, text := range []string{"plain\nüber\ttab\r\n", "begin", " end\n", "\x1b]0;title\x07\x9b31m\xff\u202eabc\x00\n"} {
		if err := o.write("zebra", []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	want := "zebra: plain\nzebra: über\ttab\nzebra: begin end\nzebra: \\x1b]0;title\\x07\\x9b31m\\xff\\x202eabc\\x00\n"
	if b.String() != want {
		t.Errorf("wrote %q, want %q", b.String(), want)
	}
}
