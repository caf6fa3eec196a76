package format

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// Every example of the reference must load, and every key must be in it.
func TestTheReferenceIsTrue(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "..", "docs", "file-format.md"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	blocks := yamlBlock.FindAllStringSubmatch(text, -1)
	if len(blocks) < 5 {
		t.Fatalf("found %d examples", len(blocks))
	}
	open := func(string, int64) ([]byte, error) { return []byte("content\n"), nil }
	for _, b := range blocks {
		doc := b[1]
		if !strings.HasPrefix(doc, "name:") {
			doc = "name: fragment\n" + doc
		}
		v, _, err := Read("docs.yaml", []byte(doc), open)
		if err != nil {
			t.Errorf("%v\n%s", err, doc)
			continue
		}
		roundTrip(t, v)
	}
	for _, table := range [][]string{networkKeys, routingKeys, addressingKeys, defaultsKeys, nodeKeys, fileKeys, positionKeys, linkKeys, endpointKeys, directionKeys} {
		for _, key := range table {
			if !slices.ContainsFunc([]string{"`" + key + "`", "`" + key + ": ", "{" + key + ": ", ", " + key + ": "}, func(s string) bool { return strings.Contains(text, s) }) {
				t.Errorf("the reference does not mention the key %s", key)
			}
		}
	}
}
