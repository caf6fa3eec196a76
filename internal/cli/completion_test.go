package cli

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"trellis/test/testenv"
)

// fakeTrellis stands in for the program in a shell: it offers what a service
// with a network would.
const fakeTrellis = `trellis() {
  [ "$1" = __complete ] || return 1
  shift
  printf '%s|' "$@" >> "$HOME/asked"
  echo >> "$HOME/asked"
  case "$*" in
    "") ;;
    "capture "*) printf '%s\n' abilene/denver:eth1 abilene/denver:eth2 :4 ;;
    "exec "*) printf '%s\n' abilene/ :6 ;;
    "validate "*) printf '%s\n' yaml graphml :8 ;;
    "--timeout="*) printf '%s\n' --timeout=3m :4 ;;
    *) printf 'validate\tCheck files\nversion\tShow the versions\n:4\n' ;;
  esac
}
`

// bashScript writes the completion script and the fake to a folder.
func bashScript(t *testing.T) (dir string) {
	t.Helper()
	testenv.NeedCommand(t, "bash")
	env := newTestEnv(t)
	if code := env.run("completion", "bash"); code != 0 {
		t.Fatalf("exit status %d: %s", code, env.err.String())
	}
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "rc"), []byte(fakeTrellis+env.out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// plainBash runs bash without any start-up file, so without bash-completion.
func plainBash(dir string, args ...string) *exec.Cmd {
	cmd := exec.Command("bash", append([]string{"--norc", "--noprofile"}, args...)...)
	cmd.Dir = dir
	cmd.Env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "PS1=> ", "TERM=dumb"}
	return cmd
}

func TestBashCompletionWords(t *testing.T) {
	dir := bashScript(t)
	for _, name := range []string{"net.yaml", "zoo.graphml", "notes.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ line, words, asked, want string }{
		{"trellis v", "trellis v", "v|", "validate version"},
		{"trellis ver", "trellis ver", "ver|", "version"},
		{"trellis capture abilene/denver:", "trellis capture abilene/denver :", "capture|abilene/denver:|", "eth1 eth2"},
		{"trellis capture abilene/denver:eth2", "trellis capture abilene/denver : eth2", "capture|abilene/denver:eth2|", "eth2"},
		{"trellis exec ab", "trellis exec ab", "exec|ab|", "abilene/"},
		{"trellis --timeout=3", "trellis --timeout = 3", "--timeout=3|", "3m"},
		{"trellis validate ne", "trellis validate ne", "validate|ne|", "net.yaml"},
		{"trellis validate no", "trellis validate no", "validate|no|", ""},
	} {
		t.Run(c.line, func(t *testing.T) {
			asked := filepath.Join(dir, "asked")
			if err := os.RemoveAll(asked); err != nil {
				t.Fatal(err)
			}
			cmd := plainBash(dir, "-c", `source ./rc
COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDS=($2)
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_trellis_complete
echo "${COMPREPLY[*]}"`, "-", c.line, c.words)
			out, err := cmd.CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || got != c.want {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
			if text, err := os.ReadFile(asked); err != nil || strings.TrimSpace(string(text)) != c.asked {
				t.Errorf("the program was asked for %q, %v; want %q", text, err, c.asked)
			}
		})
	}
}

// The script works in an interactive bash that has nothing but itself.
func TestBashCompletionAtTheKeyboard(t *testing.T) {
	dir := bashScript(t)
	cmd := plainBash(dir, "-i")
	shell, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // it was killed
		shell.Close()
	}()
	text := make(chan string)
	go func() {
		defer close(text)
		b := make([]byte, 4096)
		for {
			n, err := shell.Read(b)
			if n > 0 {
				text <- string(b[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	var seen strings.Builder
	waitFor := func(want string) {
		t.Helper()
		deadline := time.After(10 * time.Second)
		for !strings.Contains(seen.String(), want) {
			select {
			case s, ok := <-text:
				if !ok {
					t.Fatalf("bash has ended: %q", seen.String())
				}
				seen.WriteString(s)
			case <-deadline:
				t.Fatalf("%q does not come; bash shows %q", want, seen.String())
			}
		}
		seen.Reset()
	}
	write := func(s string) {
		t.Helper()
		if _, err := io.WriteString(shell, s); err != nil {
			t.Fatal(err)
		}
	}
	write("source ./rc; echo re''ady\n")
	waitFor("ready")
	write("trellis ver\t")
	waitFor("trellis version ")
	write("\x15trellis capture abilene/denver:\t")
	waitFor("eth")
	write("2; echo con''nected\n")
	waitFor("connected")
	write("trellis v\t\t")
	waitFor("(Show the versions)")
}
