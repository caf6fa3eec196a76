package format

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

var schemaPath = filepath.Join("..", "..", "docs", "schema", "vnet.schema.json")

func loadSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	data, err := os.ReadFile(schemaPath)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("vnet.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	return c.MustCompile("vnet.schema.json")
}

// instance gives a YAML document as an editor's schema checker sees it: every
// key is a string.
func instance(t *testing.T, data []byte) (any, error) {
	t.Helper()
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	quoteKeys(&doc)
	var v any
	err := doc.Decode(&v)
	return v, err
}

func quoteKeys(n *yaml.Node) {
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 && c.Kind == yaml.ScalarNode && c.ShortTag() != "!!merge" {
			c.Tag, c.Style = "!!str", yaml.DoubleQuotedStyle
		}
		quoteKeys(c)
	}
}

func TestTheSchemaAcceptsWhatTheParserAccepts(t *testing.T) {
	schema := loadSchema(t)
	check := func(name string, data []byte) {
		doc, err := instance(t, data)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		if err := schema.Validate(doc); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range goodYAML {
		check(c.name, []byte(c.yaml))
	}
	read, err := filepath.Glob(filepath.Join("testdata", "*.yaml"))
	if err != nil || len(read) == 0 {
		t.Fatalf("%d files in testdata, %v", len(read), err)
	}
	for _, path := range append(examples(t), read...) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		check(path, data)
	}
}

func TestTheSchemaRefusesWhatTheParserRefuses(t *testing.T) {
	schema := loadSchema(t)
	for _, c := range badYAML {
		if c.semantic {
			continue // beyond what a schema can say; the parser's own test has it
		}
		doc, err := instance(t, []byte(c.yaml))
		if err != nil {
			t.Errorf("%s: mark as semantic: %v", c.name, err)
			continue
		}
		if err := schema.Validate(doc); err == nil {
			t.Errorf("%s: accepted by the schema:\n%s", c.name, c.yaml)
		}
	}
}

func TestSchemaAndParserKnowTheSameKeys(t *testing.T) {
	data, err := os.ReadFile(schemaPath)
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	// at follows a path of keys and indices into the schema.
	at := func(path string) map[string]any {
		var cur any = doc
		for _, step := range strings.Fields(path) {
			switch c := cur.(type) {
			case map[string]any:
				cur = c[step]
			case []any:
				cur = c[int(step[0]-'0')]
			}
		}
		m, ok := cur.(map[string]any)
		if !ok {
			t.Fatalf("the schema has nothing at %q", path)
		}
		return m
	}
	tables := map[string][]string{
		"":                               networkKeys,
		"$defs routing anyOf 1":          routingKeys,
		"properties addressing anyOf 1":  addressingKeys,
		"$defs timers anyOf 1":           timerKeys,
		"$defs linkRouting anyOf 1":      linkRoutingKeys,
		"properties defaults":            defaultsKeys,
		"$defs nodeDefaults":             nodeDefaultKeys,
		"$defs node":                     nodeKeys,
		"$defs file":                     fileKeys,
		"$defs node properties position": positionKeys,
		"$defs linkDefaults":             linkDefaultKeys,
		"$defs link anyOf 1":             linkKeys,
		"$defs endpoint anyOf 1":         endpointKeys,
		"$defs rate anyOf 1":             directionKeys,
		"$defs delay anyOf 1":            directionKeys,
		"$defs loss anyOf 1":             directionKeys,
	}
	for path, known := range tables {
		object := at(path)
		if object["additionalProperties"] != false {
			t.Errorf("the schema lets any key through at %q", path)
		}
		props, _ := object["properties"].(map[string]any)
		if diff := cmp.Diff(slices.Sorted(slices.Values(known)), slices.Sorted(maps.Keys(props))); diff != "" {
			t.Errorf("%q (-parser +schema):\n%s", path, diff)
		}
	}
	// Every mapping of the schema with fixed keys must be in the table above.
	closed := 0
	var count func(any)
	count = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if v["additionalProperties"] == false {
				closed++
			}
			for _, e := range v {
				count(e)
			}
		case []any:
			for _, e := range v {
				count(e)
			}
		}
	}
	count(doc)
	if closed != len(tables) {
		t.Errorf("the schema has %d mappings with fixed keys, the table %d", closed, len(tables))
	}
}
