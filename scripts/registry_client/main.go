// Franz-go's client of schema registries, led through what it offers: `registry-client URL` prints nothing if all goes well.
// Built by scripts/tools.py.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"reflect"

	"github.com/twmb/franz-go/pkg/sr"
)

const (
	order      = `{"type":"record","name":"GoOrder","fields":[{"name":"id","type":"long"}]}`
	withNote   = `{"type":"record","name":"GoOrder","fields":[{"name":"id","type":"long"},{"name":"note","type":"string","default":""}]}`
	needsNote  = `{"type":"record","name":"GoOrder","fields":[{"name":"id","type":"long"},{"name":"note","type":"string"}]}`
	item       = "syntax = \"proto3\";\npackage shop;\n\nmessage Item {\n  string name = 1;\n}\n"
	protoOrder = "syntax = \"proto3\";\npackage shop;\n\nimport \"item.proto\";\n\nmessage Order {\n  repeated Item items = 1;\n}\n"
)

func expect(what string, found, wanted any) {
	if !reflect.DeepEqual(found, wanted) {
		log.Fatalf("%s: found %v, wanted %v", what, found, wanted)
	}
}

func must[T any](found T, err error) T {
	if err != nil {
		log.Fatalf("%T: %v", found, err)
	}
	return found
}

func franz(url string) {
	ctx := context.Background()
	client := must(sr.NewClient(sr.URLs(url)))
	first := must(client.CreateSchema(ctx, "franz-value", sr.Schema{Schema: order}))
	expect("first version", first.Version, 1)
	expect("the same again", must(client.CreateSchema(ctx, "franz-value", sr.Schema{Schema: order})).ID, first.ID)
	_, err := client.CreateSchema(ctx, "franz-value", sr.Schema{Schema: needsNote})
	var refused *sr.ResponseError
	expect("refused", errors.As(err, &refused) && errors.Is(refused.SchemaError(), sr.ErrIncompatibleSchema), true)
	verbose := sr.WithParams(ctx, sr.Verbose)
	compatible := must(client.CheckCompatibility(verbose, "franz-value", -1, sr.Schema{Schema: needsNote}))
	expect("compatible", compatible.Is, false)
	expect("with reasons", len(compatible.Messages) > 0, true)
	second := must(client.CreateSchema(ctx, "franz-value", sr.Schema{Schema: withNote}))
	expect("versions", must(client.SubjectVersions(ctx, "franz-value")), []int{1, 2})
	expect("by id", must(client.SchemaByID(ctx, second.ID)).Schema, withNote)
	expect("text", must(client.SchemaTextByID(ctx, first.ID)), order)
	expect("found", must(client.LookupSchema(ctx, "franz-value", sr.Schema{Schema: withNote})).Version, 2)
	expect("of id", must(client.SubjectsByID(ctx, first.ID)), []string{"franz-value"})
	expect("all", len(must(client.Schemas(ctx, "franz-value"))), 2)

	file := must(client.CreateSchema(ctx, "item.proto", sr.Schema{Schema: item, Type: sr.TypeProtobuf}))
	reference := []sr.SchemaReference{{Name: "item.proto", Subject: "item.proto", Version: file.Version}}
	whole := must(client.CreateSchema(ctx, "proto-value", sr.Schema{Schema: protoOrder, Type: sr.TypeProtobuf, References: reference}))
	expect("references", must(client.SchemaByID(ctx, whole.ID)).References, reference)
	expect("referred to by", must(client.SchemaReferences(ctx, "item.proto", 1))[0].ID, whole.ID)
	_, err = client.DeleteSubject(ctx, "item.proto", sr.SoftDelete)
	expect("kept", errors.As(err, &refused) && errors.Is(refused.SchemaError(), sr.ErrReferenceExists), true)

	set := client.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatFullTransitive}, "franz-value")
	expect("level is set", set[0].Err, nil)
	expect("level", client.Compatibility(ctx, "franz-value")[0].Level, sr.CompatFullTransitive)
	expect("level is withdrawn", client.ResetCompatibility(ctx, "franz-value")[0].Err, nil)
	expect("mode", client.Mode(ctx)[0].Mode, sr.ModeReadWrite)
	expect("types", len(must(client.SupportedTypes(ctx))), 3)
	expect("deleted", must(client.DeleteSubject(ctx, "franz-value", sr.SoftDelete)), []int{1, 2})
	expect("still readable", must(client.SchemaTextByID(ctx, first.ID)), order)
	expect("for good", must(client.DeleteSubject(ctx, "franz-value", sr.HardDelete)), []int{1, 2})
	_, err = client.SchemaByID(ctx, first.ID)
	expect("gone", errors.As(err, &refused) && errors.Is(refused.SchemaError(), sr.ErrSchemaNotFound), true)
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: registry-client URL")
		os.Exit(2)
	}
	franz(os.Args[1])
}
